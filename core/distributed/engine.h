#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "../backend/backend.h"
#include "../dtype.h"
#include "../export.h"

namespace sash::distributed {

/// How a collective combines the elements of all ranks. `mean` is for floating dtypes.
enum class ReduceOp : uint8_t { sum, mean, min, max };

/// "sum", "mean", "min" or "max".
SASH_API const char* name(ReduceOp reduction);

/// Contiguous elements in the memory of a device.
struct Elements {
  void* data = nullptr;
  int64_t count = 0;
  DType dtype = DType::float32;

  int64_t bytes() const { return count * size_of(dtype); }
  /// Part `i` of `parts` equal parts.
  Elements part(int i, int parts) const {
    const int64_t share = count / parts;
    return {static_cast<char*>(data) + i * share * size_of(dtype), share, dtype};
  }
};

/// Elements that go to a rank or come from it.
struct Message {
  int rank = 0;
  Elements elements;
};

/// Collectives among the ranks of a group, on the memory of one kind of device. NCCL for CUDA, MPI
/// for the CPU. All ranks make the same calls with the same counts and dtypes in the same order.
/// On CUDA a call queues its work on `stream`; it may be part of a capture. For the same number of
/// ranks, results have the same bits in each run. The CPU's engine adds in the order of ranks.
class SASH_API Engine {
 public:
  virtual ~Engine();

  /// Replaces each of `all` by its reduction over the ranks.
  virtual void all_reduce(std::span<const Elements> all, ReduceOp reduction, Stream stream) = 0;
  /// The same for the part of this rank alone; the other parts are undefined afterwards. Counts
  /// are multiples of the number of ranks.
  virtual void reduce_scatter(std::span<const Elements> all, ReduceOp reduction, Stream stream) = 0;
  /// Fills each of `all` from the ranks' own parts. Counts are multiples of the number of ranks.
  virtual void all_gather(std::span<const Elements> all, Stream stream) = 0;
  /// Replaces each of `all` by the elements of `root`.
  virtual void broadcast(std::span<const Elements> all, int root, Stream stream) = 0;
  /// Sends and receives at once.
  virtual void exchange(std::span<const Message> sent, std::span<const Message> received,
                        Stream stream) = 0;
  /// An engine of the ranks that pass the same color, in the order of their ranks here.
  virtual std::unique_ptr<Engine> split(int color) = 0;
  /// Ends all work, from any thread, because a rank has failed.
  virtual void abort() noexcept = 0;
};

}  // namespace sash::distributed
