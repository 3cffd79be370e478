#pragma once

#include <cuda_runtime.h>

#include <cstdint>

/// Reports of indices out of range. Kernels write them; the host does not wait for them.
namespace sash::cuda {

/// The op that read the index; for attention, the kind of data.
enum class IndexOp : int {
  embedding,
  embedding_backward,
  gather,
  scatter_add,
  scatter,
  cross_entropy,
  sparse_products,
  attention_lengths,
  attention_cu_seqlens,
  attention_ranges,
  attention_selected
};

/// One report, in pinned host memory. Kernels of one card write it. The host reads it after a
/// synchronisation. The first report stays until the host throws it. Later reports are dropped.
struct IndexFlag {
  int state;  ///< `kNone`, `kClaimed` while it is being written, or `kReported`
  IndexOp op;
  int64_t value;
  int64_t extent;
  int64_t position;  ///< element of the index tensor, or query for attention_ranges
  const char* name;  ///< on the host: the op, for lengths, cu_seqlens and ranges

  static constexpr int kNone = 0, kClaimed = 1, kReported = 2;
};

/// The flag of a card. It is never deleted. The first call for a card must not be in a capture.
IndexFlag* index_flag(int card);

/// Call after a synchronisation. If a kernel of `card` reported an index, clears the report and
/// throws `IndexError` with op, value and position; for attention, `ValueError` as on the CPU.
void throw_index_error(int card);

#ifdef __CUDACC__
/// Reports `value`, unless there is an earlier report.
inline __device__ void report(IndexFlag* flag, IndexOp op, int64_t value, int64_t extent,
                              int64_t position, const char* name = nullptr) {
  if (atomicCAS(&flag->state, IndexFlag::kNone, IndexFlag::kClaimed) != IndexFlag::kNone) return;
  flag->op = op;
  flag->value = value;
  flag->extent = extent;
  flag->position = position;
  flag->name = name;
  __threadfence_system();
  *const_cast<volatile int*>(&flag->state) = IndexFlag::kReported;
}

/// If `value` is in [-extent, extent), returns it counted from the start. Else reports it and
/// returns -1.
inline __device__ int64_t from_start(IndexFlag* flag, IndexOp op, int64_t value, int64_t extent,
                                     int64_t position) {
  const int64_t at = value < 0 ? value + extent : value;
  if (static_cast<uint64_t>(at) < static_cast<uint64_t>(extent)) return at;
  report(flag, op, value, extent, position);
  return -1;
}

/// Whether `value` is in [0, extent). Reports it if not.
inline __device__ bool in_range(IndexFlag* flag, IndexOp op, int64_t value, int64_t extent,
                                int64_t position) {
  if (static_cast<uint64_t>(value) < static_cast<uint64_t>(extent)) return true;
  report(flag, op, value, extent, position);
  return false;
}
#endif

}  // namespace sash::cuda
