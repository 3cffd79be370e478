#pragma once

#include "gather.cuh"

/// The kernels of the backward pass on tensor cores.
namespace sash::cuda::selected {

template <class T>
struct Backward {
  Dims dims;
  CUtensorMap k, v;              ///< 64 rows
  CUtensorMap q_heads, g_heads;  ///< a row of 16 heads
  Rows<const T> q, g;
  Rows<T> dq, dk, dv;
  RowStats* stats;  ///< [B, H, S_q]
};

/// Keys of a block of threads, a *part* of a block of keys. `gather_gradients` has more than 64.
__host__ __device__ inline int part_keys(const Dims& dims) {
  if (dims.has_whole_queries()) return 64;
  return dims.depth == 64 && dims.block > 128 ? 256 : 128;
}
/// Parts of a block of keys.
__host__ __device__ inline int key_parts(const Dims& dims) {
  return (dims.block + part_keys(dims) - 1) / part_keys(dims);
}

/// Keys by rows, or rows by keys.
template <class T>
using Square = Tile<T, 64, 64>;

/// Sets accumulators [keys][rows], packed, to 0 where ranges or the end `past` of the block hide
/// keys from `first` on.
__device__ inline void hide(uint32_t (&words)[16], const KeyRange (&ranges)[64], int first,
                            int past) {
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const int key = first + hopper::row_of(i % 2);
    const auto sees = [&](int e) {
      const KeyRange range = ranges[fragments::column_of(i / 2, e)];
      return range.first <= key && key < min(range.past, past);
    };
    words[i] &= (sees(0) ? 0xFFFFu : 0) | (sees(1) ? 0xFFFF0000u : 0);
  }
}

/// Stores packed accumulators [keys][rows] to a tile [rows][keys].
template <class T>
__device__ void store_square(const Square<T>& square, const uint32_t (&words)[16]) {
  const int matrix = lane() / 8, row = matrix / 2 * 8 + lane() % 8;
  const uint32_t to = chunk_address(square, row, warp() % 4 * 2 + matrix % 2);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    hopper::store_matrices<true>(to + static_cast<uint32_t>(j * 16 * Square<T>::kRowBytes),
                                 words[4 * j], words[4 * j + 1], words[4 * j + 2],
                                 words[4 * j + 3]);
  }
}

template <class T>
void backward_gradients(const KernelContext& context, const Backward<T>& call);

/// The sums and shares of a segment, unless 16 rows from a multiple of 16 on belong to one query.
template <class T>
void gather_gradients(const KernelContext& context, const Backward<T>& call, const Lists& lists,
                      const Segment& segment, float* sums, T* shares);

/// dk and dv from the sums of chunks [chunks][calls of a list][parts][dk, dv][part_keys][depth].
template <class T>
void add_chunks(const KernelContext& context, const Backward<T>& call, const Lists& lists,
                const float* sums);

/// dq of the rows of a segment from their shares [rows of the index][calls of a list][entries]
/// [parts][group][depth].
template <class T>
void add_shares(const KernelContext& context, const Backward<T>& call, const Lists& lists,
                const Segment& segment, const T* shares);

}  // namespace sash::cuda::selected
