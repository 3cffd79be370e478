#pragma once

#include "fragments.cuh"
#include "lists.h"

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

inline constexpr int kKeys = 64;  // of a block of threads

/// Parts of a block of keys.
__host__ __device__ inline int key_parts(const Dims& dims) {
  return (dims.block + kKeys - 1) / kKeys;
}

/// Rows of the index whose shares are in memory at the same time.
struct Segment {
  int64_t first, past;
  int first_list, past_list;  ///< lists that may have such rows
};

template <class T>
void backward_gradients(const KernelContext& context, const Backward<T>& call);

/// dk and dv from the sums of chunks [chunks][calls of a list][parts][dk, dv][kKeys][depth].
template <class T>
void add_chunks(const KernelContext& context, const Backward<T>& call, const Lists& lists,
                const float* sums);

/// dq of the rows of a segment from their shares [rows of the index][calls of a list][entries]
/// [parts][group][depth].
template <class T>
void add_shares(const KernelContext& context, const Backward<T>& call, const Lists& lists,
                const Segment& segment, const uint4* shares);

}  // namespace sash::cuda::selected
