#include "../../../ops/kernels/index.h"

#include "../runtime/index_flag.h"
#include "sorted_sums.cuh"

namespace sash::cuda {
namespace {

/// One warp copies one row of `words` words. Writes zeros for an index out of range.
template <class Word>
__global__ void __launch_bounds__(kThreads)
    copy_rows(const Word* table, const int64_t* index, Word* y, int64_t count, int64_t rows,
              int64_t words, IndexFlag* flag) {
  const int64_t n = WarpTeam::row();
  if (n >= count) return;
  const int lane = WarpTeam::rank();
  const int64_t from = index[n];
  const bool valid = static_cast<uint64_t>(from) < static_cast<uint64_t>(rows);
  if (!valid && lane == 0) in_range(flag, IndexOp::embedding, from, rows, n);
#pragma unroll 4
  for (int64_t w = lane; w < words; w += kWarp) {
    y[n * words + w] = valid ? table[from * words + w] : Word{};
  }
}

void embedding_forward(KernelContext& context, View weight, View index, View y) {
  const int64_t bytes = weight.shape[1] * size_of(weight.dtype), count = index.numel();
  if (bytes == 0 || count == 0) return;
  const CardGuard guard(context.device.index);
  const auto launch = [&]<class Word>(TypeTag<Word>) {
    launch_kernel(context, ceil_div(count, kWarps), kThreads, 0, copy_rows<Word>,
                  weight.ptr<Word>(), index.ptr<int64_t>(), y.ptr<Word>(), count, weight.shape[0],
                  bytes / int64_t{sizeof(Word)}, index_flag(context.device.index));
  };
  if (rows_take_vectors<uint8_t>(bytes, {weight.data, y.data})) return launch(TypeTag<uint4>{});
  dispatch_words(weight.dtype, launch);
}

// The gradient: tokens are sorted by index, and their rows summed.

/// keys[n] = index[n], or `rows`, the largest key, for an index out of range; places[n] = n.
__global__ void __launch_bounds__(kThreads)
    make_keys(const int64_t* index, int64_t count, int64_t rows, uint64_t* keys, int64_t* places,
              IndexFlag* flag) {
  const int64_t n = thread_index();
  if (n >= count) return;
  const bool valid = in_range(flag, IndexOp::embedding_backward, index[n], rows, n);
  keys[n] = static_cast<uint64_t>(valid ? index[n] : rows);
  places[n] = n;
}

void embedding_backward(KernelContext& context, View g, View index, View dweight) {
  const int64_t count = index.numel(), rows = dweight.shape[0];
  const CardGuard guard(context.device.index);
  SortedKeys tokens(context, count);
  if (count > 0) {
    launch_kernel(context, blocks_for(count), kThreads, 0, make_keys, index.ptr<int64_t>(), count,
                  rows, tokens.keys(), tokens.places(), index_flag(context.device.index));
  }
  if (dweight.numel() == 0) return;
  tokens.sort(static_cast<uint64_t>(rows));
  dispatch_device_floating(g.dtype, "embedding_backward", [&]<class T>(TypeTag<T>) {
    sum_by_key(context, tokens, MatrixRows<T>{g.ptr<T>(), g.shape[1]}, {g.data}, dweight.ptr<T>(),
               rows, g.shape[1]);
  });
}

}  // namespace

void register_embedding() {
  kernels::embedding_forward.set(DeviceType::cuda, embedding_forward);
  kernels::embedding_backward.set(DeviceType::cuda, embedding_backward);
}

}  // namespace sash::cuda
