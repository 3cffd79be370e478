#pragma once

#include "../../../ops/kernels/select_blocks.h"

#include "../norm/rows.cuh"

/// What the kernels that choose blocks of keys share. A warp has one or more rows of the index.
namespace sash::cuda::selection {

using kernels::BlockRulesOf;
using kernels::RowBlocksOf;

/// A head of the index.
template <class T, class Int>
struct HeadAt {
  Int number, batch, first_head;  ///< of all batches; its batch and first query head
  const T* pooled;
};

template <class T, class Int>
struct SelectCall {
  using A = compute_t<T>;
  BlockRulesOf<Int> rules;
  const T* q;
  const T* pooled;
  const A* lse;  ///< null: scores are logits
  int32_t* index;
  int64_t batch_step, head_step, query_step;  ///< of q
  Int key_heads, key_group;                   ///< query heads of a key head
  Int all_heads, heads, group;                ///< of all batches; query heads of a head
  Int rows, count, depth;
  Int row_blocks;  ///< blocks of threads for the rows of a head
  Int room;        ///< entries of a list
  A scale;

  __device__ HeadAt<T, Int> head(Int number) const {
    const Int batch = number / heads, first = (number - batch * heads) * group;
    const int64_t key_head = batch * key_heads + first / key_group;
    return {number, batch, first, pooled + key_head * rules.scored * depth};
  }
  __device__ A lse_of(const HeadAt<T, Int>& at, Int g, Int query) const {
    const int64_t head = at.batch * (key_heads * key_group) + at.first_head + g;
    return lse[head * rules.queries + query];
  }
  __device__ int64_t query_at(const HeadAt<T, Int>& at, Int g, Int query) const {
    return at.batch * batch_step + (at.first_head + g) * head_step + query * query_step;
  }
  __device__ int32_t* index_of(const HeadAt<T, Int>& at, Int row) const {
    return index + (int64_t{at.number} * rows + row) * count;
  }
};

/// A warp writes the blocks of a row in ascending order: all candidates and -1 after the last, or,
/// if these are more than `count`, the forced ones and block(0), block(1), ... The place of a block
/// is the number of lower ones.
template <class Int, class F>
__device__ void write_sorted(const RowBlocksOf<Int>& row, Int count, int32_t* to, const F& block) {
  if (row.candidates <= count) {
    for (Int i = WarpTeam::rank(); i < count; i += kWarp) {
      to[i] = i < row.candidates ? static_cast<int32_t>(i) : -1;
    }
    return;
  }
  const Int forced = row.forced(), taken = count - forced;
  for (Int e = WarpTeam::rank(); e < count; e += kWarp) {
    const Int own = e < forced ? row.forced(e) : block(e - forced);
    const Int near = min(max(own - row.near, Int{0}), row.past_near - row.near);
    Int place = min(own, row.first) + near;
    for (Int i = 0; i < taken; ++i) place += block(i) < own;
    to[place] = static_cast<int32_t>(own);
  }
}

}  // namespace sash::cuda::selection
