#pragma once

#include <limits>

#include "../../../../core/philox.h"
#include "../../elementwise/compute.cuh"
#include "attention_bounds.cuh"
#include "attention_launch.cuh"
#include "lanes.cuh"

/// What the attention kernels on tensor cores share, by mma and by wgmma: a call's parameters, and
/// the layout of accumulators.
///
/// Of a product [64][n] a thread holds sum[j][e], 0 <= e < 4: row 16 w + g + 8 (e / 2), column
/// 8 j + 2 t + e % 2, where w is the warp, g = lane / 4 and t = lane % 4. Rows are queries
/// (`by_query`) or keys.
namespace sash::cuda::fragments {

inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// The column of sum[j][e] on this lane.
__device__ inline int column_of(int j, int e) { return 8 * j + lane() % 4 * 2 + e % 2; }

/// sum[j] of accumulators in one array.
template <int n>
__device__ float (&four(float (&sum)[n], int j))[4] {
  return reinterpret_cast<float(&)[4]>(sum[4 * j]);
}

__device__ inline float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// 1 - 2 / (exp(2 x) + 1).
__device__ inline float tanh_approx(float x) {
  return 1 - __fdividef(2.f, exp2_approx(2 * kLog2E * x) + 1);
}

/// The statistics of a query that the backward pass needs: its log-sum-exp to the base 2, and
/// D = rowsum(g . out) - g_lse. Past the end +infinity and 0, so that P = 0.
struct alignas(8) RowStats {
  float lse, dot;
};

/// The extents and options of a call. Blocks of its map are 64 x 64. What follows `bounds` is for
/// general kernels only.
template <class T>
struct AttentionDims {
  kernels::BlockMap map;
  int batches, heads, key_heads, queries, keys;
  float exponent;  ///< scale log2(e)
  float scale;
  bool plain;  ///< scores are products times a positive scale, under map and bounds alone
  RowBounds bounds;

  float softcap;
  const T* bias;
  int64_t bias_step[4];
  const float* relative;
  int64_t relative_step[2];
  int radius;
  const float* slopes;
  int64_t slope_step;
  bool dropout;
  uint32_t threshold;
  float kept;  ///< 1 / (1 - p): the factor of weights that dropout keeps
  PhiloxState random;

  AttentionDims(const kernels::AttentionInputs& x, const kernels::AttentionParams& params,
                const RowBounds& row_bounds)
      : map(params.map),
        batches(static_cast<int>(x.q.shape[0])),
        heads(static_cast<int>(x.q.shape[1])),
        key_heads(static_cast<int>(x.k.shape[1])),
        queries(static_cast<int>(x.q.shape[2])),
        keys(static_cast<int>(x.k.shape[2])),
        exponent(static_cast<float>(params.scale * 1.4426950408889634)),
        scale(static_cast<float>(params.scale)),
        plain(exponent > 0 && params.softcap == 0 && !params.bias && !params.relative_bias &&
              !params.slopes && params.dropout == 0),
        bounds(row_bounds),
        softcap(static_cast<float>(params.softcap)),
        bias(params.bias ? params.bias->ptr<const T>() : nullptr),
        bias_step{},
        relative(params.relative_bias ? params.relative_bias->ptr<const float>() : nullptr),
        relative_step{},
        radius(params.relative_bias ? static_cast<int>(params.relative_bias->shape[1] / 2) : 0),
        slopes(params.slopes ? params.slopes->ptr<const float>() : nullptr),
        slope_step(params.slopes ? params.slopes->strides[0] : 0),
        dropout(params.dropout > 0),
        threshold(dropout_threshold(params.dropout)),
        kept(params.dropout == 1 ? 0.f : static_cast<float>(1 / (1 - params.dropout))),
        random(params.philox) {
    for (int axis = 0; params.bias && axis < 4; ++axis)
      bias_step[axis] = params.bias->strides[axis];
    for (int axis = 0; params.relative_bias && axis < 2; ++axis) {
      relative_step[axis] = params.relative_bias->strides[axis];
    }
  }

  /// The key head that query head h reads.
  __device__ int key_head_of(int h) const { return h / (heads / key_heads); }
  /// The block row of block 0 of head (b, h), where a head has `blocks` rows.
  __device__ int64_t first_row(int b, int h, int64_t blocks) const {
    return ((map.batches == 1 ? 0 : b) * map.heads + (map.heads == 1 ? 0 : h)) * blocks;
  }
  /// Of query block 0, in [B, H, query blocks].
  __device__ int64_t block_of(int b, int h) const {
    return (static_cast<int64_t>(b) * heads + h) * map.query_blocks;
  }
  /// Of query 0, in [B, H, queries].
  __device__ int64_t row_of(int b, int h) const {
    return (static_cast<int64_t>(b) * heads + h) * queries;
  }
};

}  // namespace sash::cuda::fragments
