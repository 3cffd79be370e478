#pragma once

#include <cuda_runtime.h>

#include <cstdint>

/// How kernels report an index that is out of range without making the host wait.
namespace sash::cuda {

/// The ops whose kernels look at indices; for attention, the kind of data.
enum class IndexOp : int {
  embedding,
  embedding_backward,
  gather,
  scatter_add,
  cross_entropy,
  attention_lengths,
  attention_cu_seqlens,
  attention_ranges
};

/// One report: pinned host memory, which kernels of one card write and the host reads when it has
/// waited for them. The first report stays until it is thrown.
struct IndexFlag {
  int state;  ///< `kNone`, `kClaimed` while it is being written, or `kReported`
  IndexOp op;
  int64_t value;
  int64_t extent;
  int64_t position;  ///< of the value, counted in elements of the index (row ranges: in queries)

  static constexpr int kNone = 0, kClaimed = 1, kReported = 2;
};

/// The flag of a card; lives for ever. The first call for a card must not be within a capture.
IndexFlag* index_flag(int card);

/// `IndexError` naming op, value and position if a kernel of `card` that the host has waited for
/// reported one (for attention the `ValueError` that the CPU throws at once); the flag is then free
/// again.
void throw_index_error(int card);

#ifdef __CUDACC__
/// Reports `value`, unless an earlier report waits to be thrown.
inline __device__ void report(IndexFlag* flag, IndexOp op, int64_t value, int64_t extent,
                              int64_t position) {
  if (atomicCAS(&flag->state, IndexFlag::kNone, IndexFlag::kClaimed) != IndexFlag::kNone) return;
  flag->op = op;
  flag->value = value;
  flag->extent = extent;
  flag->position = position;
  __threadfence_system();
  *const_cast<volatile int*>(&flag->state) = IndexFlag::kReported;
}

/// Whether `value` is in [0, extent); reports it if it is not.
inline __device__ bool in_range(IndexFlag* flag, IndexOp op, int64_t value, int64_t extent,
                                int64_t position) {
  if (static_cast<uint64_t>(value) < static_cast<uint64_t>(extent)) return true;
  report(flag, op, value, extent, position);
  return false;
}
#endif

}  // namespace sash::cuda
