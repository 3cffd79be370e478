#pragma once

#include "../norm/rows.cuh"
#include "sorted_keys.h"

/// Sums of rows by key, without atomics, in a fixed order. A stable sort orders the keys.
/// `sum_pieces` adds up each aligned piece of kPiece sorted rows that all have the same key, so
/// that a frequent key is not slow. `sum_rows` then adds the partial sums and the remaining rows of
/// each key in order.
namespace sash::cuda {
namespace sums {

inline constexpr int64_t kPiece = 32;
/// Up to this many keys, the channels are split over blockIdx.y. For more keys, each warp loops
/// over the channels.
inline constexpr int64_t kFewRows = 16384;

/// The first position in [begin, count] of the sorted keys whose key is not below `key`. Called by
/// a whole warp.
inline __device__ int64_t lower_bound(const uint64_t* keys, int64_t begin, int64_t count,
                                      uint64_t key) {
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

/// Adds the rows at sorted positions [from, to), in order, to `total`. A lane that is not `inside`
/// only passes places to the other lanes. Called by a whole warp.
template <int V, class A, class Source>
__device__ void add_rows(const int64_t* places, int64_t from, int64_t to, const Source& source,
                         int64_t column, bool inside, Vector<A, V>& total) {
  for (int64_t begin = from; begin < to; begin += kWarp) {
    const auto count = static_cast<int>(min(int64_t{kWarp}, to - begin));
    const int64_t mine = WarpTeam::rank() < count ? places[begin + WarpTeam::rank()] : 0;
#pragma unroll 16
    for (int i = 0; i < count; ++i) {
      const int64_t place = __shfl_sync(kAllLanes, mine, i);
      if (inside) add_to(total, source.template at<V>(place, column));
    }
  }
}

/// partial[p] = sum over the p-th piece of sorted rows, if they all have one key.
template <int V, class A, class Source>
__global__ void __launch_bounds__(kThreads)
    sum_pieces(const uint64_t* keys, const int64_t* places, int64_t pieces, const Source source,
               A* partial, int64_t width) {
  const int64_t piece = WarpTeam::row();
  if (piece >= pieces) return;
  const int64_t begin = piece * kPiece;
  if (keys[begin] != keys[begin + kPiece - 1]) return;
  for (int64_t first = int64_t{blockIdx.y} * kWarp * V; first < width;
       first += int64_t{gridDim.y} * kWarp * V) {
    const int64_t at = first + WarpTeam::rank() * V;
    Vector<A, V> total{};
    add_rows(places, begin, begin + kPiece, source, at, at < width, total);
    if (at < width) write<V>(partial + piece * width + at, total);
  }
}

/// y[v] = sum over the sorted rows with key v.
template <int V, class A, class T, class Source>
__global__ void __launch_bounds__(kThreads)
    sum_rows(const uint64_t* keys, const int64_t* places, int64_t count, const Source source,
             const A* partial, T* y, int64_t rows, int64_t width) {
  const int64_t row = WarpTeam::row();
  if (row >= rows) return;
  const int64_t begin = lower_bound(keys, 0, count, static_cast<uint64_t>(row));
  const int64_t end = lower_bound(keys, begin, count, static_cast<uint64_t>(row) + 1);
  // [whole, last) consists of whole pieces.
  const int64_t whole = min(end, (begin + kPiece - 1) / kPiece * kPiece);
  const int64_t last = max(whole, end / kPiece * kPiece);
  for (int64_t first = int64_t{blockIdx.y} * kWarp * V; first < width;
       first += int64_t{gridDim.y} * kWarp * V) {
    const int64_t at = first + WarpTeam::rank() * V;
    const bool inside = at < width;
    Vector<A, V> total{};
    add_rows(places, begin, whole, source, at, inside, total);
#pragma unroll 8
    for (int64_t i = whole; i < last; i += kPiece) {
      if (inside) add_to(total, read<V>(partial + i / kPiece * width + at));
    }
    add_rows(places, last, end, source, at, inside, total);
    if (inside) write<V>(y + row * width + at, total);
  }
}

template <int V, class T, class Source>
void launch(const KernelContext& context, const SortedKeys& sorted, const Source& source, T* y,
            int64_t rows, int64_t width) {
  using A = compute_t<T>;
  const int64_t pieces = sorted.count() / kPiece;
  const Workspace partial(context, pieces * width * int64_t{sizeof(A)});
  const int64_t channels = std::min<int64_t>(ceil_div(width, kWarp * V), 65535);
  if (pieces > 0) {
    launch_kernel(context, {ceil_div(pieces, kWarps), channels}, kThreads, 0,
                  sum_pieces<V, A, Source>, sorted.keys(), sorted.places(), pieces, source,
                  partial.ptr<A>(), width);
  }
  launch_kernel(context, {ceil_div(rows, kWarps), rows <= kFewRows ? channels : 1}, kThreads, 0,
                sum_rows<V, A, T, Source>, sorted.keys(), sorted.places(), sorted.count(), source,
                partial.ptr<A>(), y, rows, width);
}

}  // namespace sums

/// A source for `sum_by_key`: the rows of x, of `width` elements.
template <class T>
struct MatrixRows {
  const T* x;
  int64_t width;

  template <int V>
  __device__ Vector<compute_t<T>, V> at(int64_t place, int64_t column) const {
    return read<V>(x + place * width + column);
  }
};

/// y[v] = sum of the rows source.at<V>(place, column) with key v, in the order of `keys`. y is
/// contiguous [rows, width] of the device type `T`. Keys outside [0, rows) are left out. `data` are
/// the addresses that the source reads in vectors, in rows of `width`.
template <class T, class Source>
void sum_by_key(const KernelContext& context, const SortedKeys& sorted, const Source& source,
                std::initializer_list<const void*> data, T* y, int64_t rows, int64_t width) {
  if (rows == 0 || width == 0) return;
  const bool vectors = rows_take_vectors<T>(width, data) && rows_take_vectors<T>(width, {y});
  with_vector_width<16 / sizeof(T)>(vectors, [&]<int V>(std::integral_constant<int, V>) {
    sums::launch<V>(context, sorted, source, y, rows, width);
  });
}

}  // namespace sash::cuda
