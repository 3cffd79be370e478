#pragma once

#include <algorithm>

#include "../../../../core/philox.h"
#include "../../../../ops/kernels/attention.h"
#include "../../elementwise/compute.cuh"
#include "bounds.cuh"

namespace sash::cuda {

/// The extents and options of a call. Blocks of its map are 64 x 64. Only general kernels read the
/// fields after `bounds`.
template <class T>
struct AttentionDims {
  using C = compute_t<T>;
  kernels::BlockMap map;
  int batches, heads, key_heads, queries, keys;
  C exponent;  ///< scale log2(e)
  C scale;
  bool options;  ///< whether scores have a softcap, a bias, a relative bias or slopes
  bool plain;    ///< whether there are no options, no dropout, and a positive scale
  RowBounds bounds;

  C softcap;
  const T* bias;
  int64_t bias_step[4];
  const C* relative;
  int64_t relative_step[2];
  int radius;
  const C* slopes;
  int64_t slope_step;
  bool dropout;
  kernels::AttentionDropout drop;
  int kept_span;  ///< blocks from the first to the last that a query block lists, at most; over 1
  uint32_t per_kept_span;  ///< 2^32 / kept_span, rounded up
  C kept;                  ///< the factor of the weights that dropout does not drop
  PhiloxState random;

  AttentionDims(const AttentionInputs& x, const AttentionParams& params,
                const RowBounds& row_bounds)
      : map(params.map),
        batches(static_cast<int>(x.q.shape[0])),
        heads(static_cast<int>(x.q.shape[1])),
        key_heads(static_cast<int>(x.k.shape[1])),
        queries(static_cast<int>(x.q.shape[2])),
        keys(static_cast<int>(x.k.shape[2])),
        exponent(static_cast<C>(params.scale * 1.4426950408889634)),
        scale(static_cast<C>(params.scale)),
        options(params.softcap != 0 || params.bias || params.relative_bias || params.slopes),
        plain(exponent > 0 && !options && params.dropout == 0),
        bounds(row_bounds),
        softcap(static_cast<C>(params.softcap)),
        bias(params.bias ? params.bias->ptr<const T>() : nullptr),
        bias_step{},
        relative(params.relative_bias ? params.relative_bias->ptr<const C>() : nullptr),
        relative_step{},
        radius(params.relative_bias ? static_cast<int>(params.relative_bias->shape[1] / 2) : 0),
        slopes(params.slopes ? params.slopes->ptr<const C>() : nullptr),
        slope_step(params.slopes ? params.slopes->strides[0] : 0),
        dropout(params.dropout > 0),
        drop(params.dropout),
        kept_span(static_cast<int>(
            std::max<int64_t>(map.by_query.contiguous ? map.by_query.longest : map.key_blocks, 2))),
        per_kept_span(~0u / static_cast<uint32_t>(kept_span) + 1),
        kept(static_cast<C>(drop.factor())),
        random(params.philox) {
    for (int axis = 0; params.bias && axis < 4; ++axis)
      bias_step[axis] = params.bias->strides[axis];
    for (int axis = 0; params.relative_bias && axis < 2; ++axis) {
      relative_step[axis] = params.relative_bias->strides[axis];
    }
  }

  /// Where dropout's numbers start in the stream of the generator.
  __device__ uint64_t draws_start() const {
    return (random.base ? *random.base : 0) + random.offset;
  }

  /// Bit j: whether dropout keeps the weight of key 32 at + j, of row `row` of [B, H, S_q].
  __device__ uint32_t kept_word(int64_t row, int at) const {
    return drop.word(random.seed, draws_start(), row, at);
  }

  /// The number of the bit tile of dropout (kept.cuh) of block n of query block `row` of [B, H,
  /// query blocks].
  __device__ int kept_tile(int64_t row, int n) const {
    // n / kept_span, for n < 2^32 / kept_span.
    const int rounds = static_cast<int>(__umulhi(static_cast<uint32_t>(n), per_kept_span));
    return (static_cast<int>(row) - rounds) * kept_span + n;
  }

  /// The key head that query head h reads.
  __device__ int key_head_of(int h) const { return h / (heads / key_heads); }
  /// The block row of block 0 of head (b, h), where a head has `blocks` rows.
  __device__ int64_t first_row(int b, int h, int64_t blocks) const {
    return ((map.batches == 1 ? 0 : b) * map.heads + (map.heads == 1 ? 0 : h)) * blocks;
  }
  /// The index of query block 0 of head (b, h) in [B, H, query blocks].
  __device__ int64_t block_of(int b, int h) const {
    return (static_cast<int64_t>(b) * heads + h) * map.query_blocks;
  }
  /// The index of query 0 of head (b, h) in [B, H, queries].
  __device__ int64_t row_of(int b, int h) const {
    return (static_cast<int64_t>(b) * heads + h) * queries;
  }
};

}  // namespace sash::cuda
