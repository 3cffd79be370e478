#pragma once

#include "../../../../ops/kernels/selected_attention.h"
#include "../../runtime/index_flag.h"
#include "../../runtime/launch.cuh"
#include "../common/rows.cuh"

/// Attention over selected blocks: what its kernels share.
///
/// A *unit* is the query heads of a key head that share a row of the index; a *group* is the rows
/// of q [queries_per_row of them in each head of the unit] that one row of the index serves.
namespace sash::cuda::selected {

using kernels::AttentionGradients;
using kernels::AttentionInputs;
using kernels::KeyRange;
using kernels::SelectedAttentionParams;

struct Dims {
  int batches, heads, key_heads, queries, keys, depth, width;
  int units;      ///< of all key heads
  int heads_per;  ///< query heads of a unit
  int rows, entries, block, blocks, queries_per_row;
  int group;  ///< queries_per_row heads_per
  int parts;  ///< of 16 rows, of a group
  int left, right;
  double scale;

  const int32_t* index;
  int index_batches, index_heads;
  const KeyRange* bounds;
  int bound_batches, bound_heads;

  Dims(const AttentionInputs& x, const SelectedAttentionParams& p)
      : batches(static_cast<int>(x.q.shape[0])),
        heads(static_cast<int>(x.q.shape[1])),
        key_heads(static_cast<int>(x.k.shape[1])),
        queries(static_cast<int>(x.q.shape[2])),
        keys(static_cast<int>(x.k.shape[2])),
        depth(static_cast<int>(x.q.shape[3])),
        width(static_cast<int>(x.v.shape[3])),
        units(std::max(static_cast<int>(p.index.shape[1]), key_heads)),
        heads_per(heads / units),
        rows(static_cast<int>(p.index.shape[2])),
        entries(static_cast<int>(p.index.shape[3])),
        block(static_cast<int>(p.block)),
        blocks(static_cast<int>(ceil_div(p.index.shape[2] > 0 ? x.k.shape[2] : 0, p.block))),
        queries_per_row(static_cast<int>(p.queries_per_row)),
        group(queries_per_row * heads_per),
        parts(ceil_div(group, 16)),
        left(static_cast<int>(p.left)),
        right(static_cast<int>(p.right)),
        scale(p.scale),
        index(p.index.ptr<const int32_t>()),
        index_batches(static_cast<int>(p.index.shape[0])),
        index_heads(static_cast<int>(p.index.shape[1])),
        bounds(p.bounds ? p.bounds->ptr<const KeyRange>() : nullptr),
        bound_batches(p.bounds ? static_cast<int>(p.bounds->shape[0]) : 1),
        bound_heads(p.bounds ? static_cast<int>(p.bounds->shape[1]) : 1) {}

  __host__ __device__ int units_of_key_head() const { return units / key_heads; }
  /// The heads of the index that lists tell apart (lists.h), and the calls that read a list: pairs
  /// of a batch and a key head.
  __host__ __device__ int list_heads() const {
    return index_heads < key_heads ? index_heads : key_heads;
  }
  __host__ __device__ int calls() const {
    return batches / index_batches * (key_heads / list_heads());
  }

  /// The number in the index of a row of a unit.
  __device__ int64_t index_row(int b, int unit, int row) const {
    const int at_b = index_batches == 1 ? 0 : b;
    const int at_h = static_cast<int>(static_cast<int64_t>(unit) * index_heads / units);
    return (static_cast<int64_t>(at_b) * index_heads + at_h) * rows + row;
  }

  /// The number of query 0 of head (b, h) in [B, H, S_q].
  __device__ int64_t row_of(int b, int h) const {
    return (static_cast<int64_t>(b) * heads + h) * queries;
  }

  /// The keys that windows and bounds leave to a query.
  __device__ KeyRange range(int b, int h, int query) const {
    const int64_t p = static_cast<int64_t>(query) + keys - queries;
    KeyRange seen{static_cast<int32_t>(max(int64_t{0}, p - left)),
                  static_cast<int32_t>(min(static_cast<int64_t>(keys), p + right + 1))};
    if (bounds) {
      const int64_t head = (bound_batches == 1 ? 0 : b) * static_cast<int64_t>(bound_heads) +
                           (bound_heads == 1 ? 0 : h);
      const KeyRange own = bounds[head * queries + query];
      seen = {max(seen.first, own.first), min(seen.past, own.past)};
    }
    return seen;
  }

  /// Whether 16 rows from a multiple of 16 on belong to one query and neighbouring heads.
  __host__ __device__ bool has_whole_queries() const {
    return queries_per_row == 1 && heads_per % 16 == 0;
  }

  /// The items of a unit: 16 rows of q, of a group.
  __host__ __device__ int items() const { return rows * parts; }

  /// Query and head of row `at` of a group; query -1 if there is none.
  __device__ int2 place(int unit, int row, int at) const {
    const int query = row * queries_per_row + at / heads_per;
    if (row >= rows || at >= group || query >= queries) return {-1, 0};
    return {query, unit * heads_per + at % heads_per};
  }
};

}  // namespace sash::cuda::selected
