#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "../core/export.h"

namespace sash {

/// The calls of one kernel.
struct ProfileRow {
  std::string op;  ///< the kernel's slot, such as "linear_forward"
  int64_t calls = 0;
  double ms = 0;          ///< in all
  int64_t bytes = 0;      ///< that its calls read and write: `byte_count`
  double operations = 0;  ///< additions and multiplications of products; 0 for other kernels
  /// The time that a large copy of the bytes would take here, or a large product of the operations
  /// if that is longer, over `ms`.
  double share = 0;
};

/// Measures every kernel from construction to `stop`:
///
///     Profiler profiler;
///     for (int i = 0; i < 10; ++i) step(...);
///     profiler.stop();
///     std::cout << profiler.table();
///     profiler.write_trace("trace.json");  // for chrome://tracing or ui.perfetto.dev
///
/// The time is that of the host's clock on the CPU, and between two events on CUDA: where the card
/// waits for the host, that is part of it. On CUDA each call is also an NVTX range. A
/// `CapturedStep` runs eagerly meanwhile. The first 200,000 calls are kept. Calls of all threads
/// count, also of loader workers. A call counts as part of an outer call of the same thread.
class SASH_API Profiler {
 public:
  /// Starts. `ValueError` if another profiler runs.
  Profiler();
  ~Profiler();
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  /// Waits for the devices, and ends the measurement. The other members do so too. Other threads
  /// may go on: their calls that have not ended are left out.
  void stop();

  /// One row a kernel, the longest time first. Calls within a call are part of that one.
  std::vector<ProfileRow> rows();
  /// Milliseconds from construction to `stop`, work of the host between kernels included.
  double wall_ms();
  /// The most bytes in use on a kernel's device when one of the kernels ended.
  int64_t peak_bytes();
  /// The rows as text, on the CPU as on CUDA: calls, time, its share, bytes, rates, and the share
  /// of what the device does at best; below them `wall_ms` and `peak_bytes`.
  std::string table();
  /// Writes all calls as Chrome trace events: op, device, stream, shapes, bytes. `IoError` if it
  /// cannot; an old file at `path` is then as it was.
  void write_trace(const std::string& path);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace sash
