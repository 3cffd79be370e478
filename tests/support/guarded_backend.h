#pragma once

#include <string>
#include <vector>

namespace sash::testing {

/// While one lives, every block that the CPU backend hands out (results, workspaces) stands between
/// guard zones and is filled with NaN: a kernel that writes outside its output is found when the
/// block is freed, or by `problems`, and elements that it forgets to write show up as NaN.
class GuardedMemory {
 public:
  GuardedMemory();
  ~GuardedMemory();
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;

  /// What was found so far, and forgets it.
  std::vector<std::string> problems();
};

}  // namespace sash::testing
