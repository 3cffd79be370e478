#pragma once

#include <string>
#include <vector>

namespace sash::testing {

/// During its lifetime, every block that the CPU backend allocates (results, workspaces) lies
/// between guard zones and is filled with NaN. Writes outside a block are found when it is freed,
/// or by `problems`; elements that a kernel forgets to write stay NaN.
class GuardedMemory {
 public:
  GuardedMemory();
  ~GuardedMemory();
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;

  /// The problems found since the last call.
  std::vector<std::string> problems();
};

}  // namespace sash::testing
