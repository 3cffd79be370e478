#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "../core/export.h"

namespace sash::optim {

/// The calls of one kernel.
struct ProfileRow {
  std::string op;  ///< the kernel's slot, such as "linear_forward"
  int64_t calls = 0;
  double ms = 0;          ///< in all
  int64_t bytes = 0;      ///< that its calls read and write: `byte_count`
  double operations = 0;  ///< additions and multiplications of products; 0 for other kernels
  /// The shortest possible time divided by `ms`: the time of a large copy of the same bytes on this
  /// device, or of a large product of the same operations if that is longer.
  double share = 0;
};

/// Measures every kernel from construction to `stop`:
///
///     optim::Profiler profiler;
///     for (int i = 0; i < 10; ++i) step(...);
///     profiler.stop();
///     std::cout << profiler.table();
///     profiler.write_trace("trace.json");  // for chrome://tracing or ui.perfetto.dev
///
/// Time is the host's clock on the CPU, and that between two events on CUDA, waits for the host
/// included. On CUDA each call is also an NVTX range. While a profiler runs, a `CapturedStep` runs
/// eagerly. The profiler records the first 200,000 calls of all threads, loader workers included. A
/// call within another call of the same thread is part of the outer call.
class SASH_API Profiler {
 public:
  /// Starts. `ValueError` if another profiler runs.
  Profiler();
  ~Profiler();
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  /// Waits for the devices, and ends the measurement; so do the members below. Calls of other
  /// threads that have not ended are left out.
  void stop();

  /// A row for each kernel, the longest time first. Calls within a call belong to it.
  std::vector<ProfileRow> rows();
  /// Milliseconds from construction to `stop`, including the host's work between kernels.
  double wall_ms();
  /// The largest number of bytes in use on a kernel's device at the end of a kernel.
  int64_t peak_bytes();
  /// The rows as text: calls, time, share of the time, bytes, rates, and share of the device's
  /// limit; below them `wall_ms` and `peak_bytes`.
  std::string table();
  /// Writes all calls as Chrome trace events: op, device, stream, shapes, bytes. `IoError` if it
  /// cannot; an old file at `path` then stays.
  void write_trace(const std::string& path);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace sash::optim

namespace sash {
using Profiler [[deprecated("use optim::Profiler")]] = optim::Profiler;
using ProfileRow [[deprecated("use optim::ProfileRow")]] = optim::ProfileRow;
}  // namespace sash
