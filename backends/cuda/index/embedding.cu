#include "../../../ops/kernels/index.h"

#include "../norm/rows.cuh"
#include "../runtime/index_flag.h"
#include "sorted_keys.h"

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

void embedding_forward(KernelContext& context, const TensorView& weight, const TensorView& index,
                       const TensorView& y) {
  const int64_t bytes = weight.shape[1] * size_of(weight.dtype), count = index.numel();
  if (bytes == 0 || count == 0) return;
  const CardGuard guard(context.device.index);
  const auto launch = [&]<class Word>(TypeTag<Word>) {
    const auto blocks = static_cast<unsigned>((count + kWarps - 1) / kWarps);
    copy_rows<<<blocks, kThreads, 0, static_cast<cudaStream_t>(context.stream.handle)>>>(
        weight.ptr<Word>(), index.ptr<int64_t>(), y.ptr<Word>(), count, weight.shape[0],
        bytes / static_cast<int64_t>(sizeof(Word)), index_flag(context.device.index));
    SASH_CUDA_CHECK(cudaGetLastError());
  };
  if (rows_take_vectors<uint8_t>(bytes, {weight.data, y.data})) return launch(TypeTag<uint4>{});
  dispatch_words(weight.dtype, launch);
}

// The gradient, without atomics. Tokens are sorted by index; the sort is stable. `sum_pieces` adds
// aligned pieces of kPiece sorted tokens that have one index, so that a frequent index is not slow.
// `sum_rows` then adds, per index, these partial sums and the remaining tokens, in order.
constexpr int64_t kPiece = 32;
/// Up to this many rows the channels are split over blockIdx.y; beyond, each warp loops over them.
constexpr int64_t kFewRows = 16384;

/// keys[n] = index[n], or `rows`, the largest key, for an index out of range; places[n] = n.
__global__ void __launch_bounds__(kThreads)
    make_keys(const int64_t* index, int64_t count, int64_t rows, uint64_t* keys, int64_t* places,
              IndexFlag* flag) {
  const int64_t n = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (n >= count) return;
  const bool valid = in_range(flag, IndexOp::embedding_backward, index[n], rows, n);
  keys[n] = static_cast<uint64_t>(valid ? index[n] : rows);
  places[n] = n;
}

/// The first position in [begin, count] of the sorted keys whose key is not below `key`. Called by
/// a whole warp.
__device__ int64_t lower_bound(const uint64_t* keys, int64_t begin, int64_t count, uint64_t key) {
  int64_t low = begin, high = count;
  while (low < high) {
    const int64_t step = (high - low + kWarp - 1) / kWarp;
    const int64_t probe = low + WarpTeam::rank() * step;
    const bool below = probe < high && keys[probe] < key;
    const int64_t found = __popc(__ballot_sync(kAllLanes, below));
    high = min(high, low + found * step);
    if (found > 0) low += (found - 1) * step + 1;
  }
  return low;
}

template <int V, class A>
__device__ void add_to(Vector<A, V>& total, const Vector<A, V>& more) {
#pragma unroll
  for (int i = 0; i < V; ++i) total.element[i] += more.element[i];
}

/// partial[p] = sum of g over the p-th piece of sorted tokens, if they all have one index.
template <int V, class T>
__global__ void __launch_bounds__(kThreads)
    sum_pieces(const uint64_t* keys, const int64_t* places, int64_t pieces, const T* g,
               compute_t<T>* partial, int64_t width) {
  const int64_t piece = WarpTeam::row();
  if (piece >= pieces) return;
  const int64_t begin = piece * kPiece;
  if (keys[begin] != keys[begin + kPiece - 1]) return;
  for (int64_t at = (int64_t{blockIdx.y} * kWarp + WarpTeam::rank()) * V; at < width;
       at += int64_t{gridDim.y} * kWarp * V) {
    Vector<compute_t<T>, V> total{};
#pragma unroll 8
    for (int64_t i = begin; i < begin + kPiece; ++i) {
      add_to(total, read<V>(g + places[i] * width + at));
    }
    write<V>(partial + piece * width + at, total);
  }
}

/// dweight[v] = sum of g over the sorted tokens with key v.
template <int V, class T>
__global__ void __launch_bounds__(kThreads)
    sum_rows(const uint64_t* keys, const int64_t* places, int64_t count, const T* g,
             const compute_t<T>* partial, T* dweight, int64_t rows, int64_t width) {
  const int64_t row = WarpTeam::row();
  if (row >= rows) return;
  const int64_t begin = lower_bound(keys, 0, count, static_cast<uint64_t>(row));
  const int64_t end = lower_bound(keys, begin, count, static_cast<uint64_t>(row) + 1);
  // [first, last) consists of whole pieces.
  const int64_t first = min(end, (begin + kPiece - 1) / kPiece * kPiece);
  const int64_t last = max(first, end / kPiece * kPiece);
  for (int64_t at = (int64_t{blockIdx.y} * kWarp + WarpTeam::rank()) * V; at < width;
       at += int64_t{gridDim.y} * kWarp * V) {
    Vector<compute_t<T>, V> total{};
    const auto walk = [&](int64_t from, int64_t to) {
#pragma unroll 4
      for (int64_t i = from; i < to; ++i) add_to(total, read<V>(g + places[i] * width + at));
    };
    walk(begin, first);
#pragma unroll 8
    for (int64_t i = first; i < last; i += kPiece) {
      add_to(total, read<V>(partial + i / kPiece * width + at));
    }
    walk(last, end);
    write<V>(dweight + row * width + at, total);
  }
}

template <int V, class T>
void add_up(const KernelContext& context, const SortedKeys& tokens, const TensorView& g,
            const TensorView& dweight) {
  using A = compute_t<T>;
  const int64_t rows = dweight.shape[0], width = dweight.shape[1];
  const int64_t pieces = tokens.count() / kPiece;
  const Workspace partial(context, pieces * width * static_cast<int64_t>(sizeof(A)));
  const auto stream = static_cast<cudaStream_t>(context.stream.handle);
  const int64_t channels = std::min<int64_t>((width + kWarp * V - 1) / (kWarp * V), 65535);
  const auto grid = [&](int64_t warps, bool spread) {
    return dim3(static_cast<unsigned>((warps + kWarps - 1) / kWarps),
                spread ? static_cast<unsigned>(channels) : 1);
  };
  if (pieces > 0) {
    sum_pieces<V><<<grid(pieces, true), kThreads, 0, stream>>>(
        tokens.keys(), tokens.places(), pieces, g.ptr<T>(), partial.ptr<A>(), width);
    SASH_CUDA_CHECK(cudaGetLastError());
  }
  sum_rows<V><<<grid(rows, rows <= kFewRows), kThreads, 0, stream>>>(
      tokens.keys(), tokens.places(), tokens.count(), g.ptr<T>(), partial.ptr<A>(),
      dweight.ptr<T>(), rows, width);
  SASH_CUDA_CHECK(cudaGetLastError());
}

void embedding_backward(KernelContext& context, const TensorView& g, const TensorView& index,
                        const TensorView& dweight) {
  const int64_t count = index.numel(), rows = dweight.shape[0];
  const CardGuard guard(context.device.index);
  SortedKeys tokens(context, count);
  if (count > 0) {
    make_keys<<<blocks_for(count), kThreads, 0, static_cast<cudaStream_t>(context.stream.handle)>>>(
        index.ptr<int64_t>(), count, rows, tokens.keys(), tokens.places(),
        index_flag(context.device.index));
    SASH_CUDA_CHECK(cudaGetLastError());
  }
  if (dweight.numel() == 0) return;
  tokens.sort(static_cast<uint64_t>(rows));
  dispatch_any_floating(g.dtype, "embedding_backward", [&]<class S>(TypeTag<S>) {
    using T = device_t<S>;
    if (rows_take_vectors<T>(g.shape[1], {g.data, dweight.data})) {
      add_up<16 / sizeof(T), T>(context, tokens, g, dweight);
    } else {
      add_up<1, T>(context, tokens, g, dweight);
    }
  });
}

}  // namespace

void register_embedding() {
  kernels::embedding_forward.set(DeviceType::cuda, embedding_forward);
  kernels::embedding_backward.set(DeviceType::cuda, embedding_backward);
}

}  // namespace sash::cuda
