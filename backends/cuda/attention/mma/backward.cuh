#pragma once

#include "scores.cuh"

/// What the two backward kernels share. Each kernel recomputes P, from the saved log-sum-exp, and
/// dS. So each sum is computed by one block of threads, in a fixed order.
namespace sash::cuda::mma {

template <class T>
struct Backward {
  AttentionDims<T> dims;
  Rows<const T> q, k, v, g, out;
  const float *lse, *g_lse;
  Rows<T> dq, dk, dv;
  float* dbias;
  RowStats* stats;  ///< [B, H, padded_queries()], written by the kernel of dq
  /// [B, H, blocks of dq's kernel, 2 R + 1]: sums along diagonals, or null.
  float* diagonals;
  const KeptTile *kept_by_query,
      *kept_by_key;  ///< bit tiles (common/kept.cuh); null unless Kind::dropout

  /// The kind of the kernels that compute the call.
  Kind kind() const { return kind_of(dims, features()); }
  int64_t features() const { return std::max(q.width, v.width); }
  /// The number of queries, rounded up to whole blocks of the map.
  __host__ __device__ int padded_queries() const {
    return static_cast<int>(dims.map.query_blocks) * kBlockQueries;
  }
};

/// How many queries a block of threads has in the general kernel of dq, for heads of `features`.
template <class T>
int query_rows(int64_t features);

/// Writes dq, the statistics, dbias and the diagonals.
template <class T>
void backward_queries(const KernelContext& context, const Backward<T>& call);

/// Writes dk and dv. Called after `backward_queries`.
template <class T>
void backward_keys(const KernelContext& context, const Backward<T>& call);

/// The statistics of a lane's rows, if rows are queries.
template <int kTiles>
struct StatsOfRows {
  RowStats row[kTiles][2];
  __device__ const StatsOfRows& columns(int) const { return *this; }
  __device__ RowStats operator()(int tile, int e) const { return row[tile][e / 2]; }
};

/// The statistics of columns, if columns are queries. They are in shared memory.
struct StatsOfColumns {
  struct Pair {
    RowStats of[2];
    __device__ RowStats operator()(int, int e) const { return of[e % 2]; }
  };
  const RowStats* shared;
  __device__ Pair columns(int j) const {
    const float4 x = *reinterpret_cast<const float4*>(shared + column_of(j, 0));
    return {{{x.x, x.y}, {x.z, x.w}}};
  }
};

/// Turns products q . k into M P, with P = 2^(exponent score - lse) and the factors M of dropout,
/// and products g . v into dS = P (M dP - D).
template <bool masked, int kTiles, int kStep, class Stats, class Seen, class F>
__device__ void form_dscores(Sums<kTiles, kStep>& score, Sums<kTiles, kStep>& dscore,
                             float exponent, const Stats& stats, const Seen& mask,
                             const F& factors) {
#pragma unroll
  for (int j = 0; j < kStep / 8; ++j) {
    const auto& columns = stats.columns(j);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const RowStats row_stats = columns(tile, e);
        float weight = exp2_approx(fmaf(score[tile][j][e], exponent, -row_stats.lse));
        if (masked && !mask(tile, j, e)) weight = 0;
        const float factor = factors(tile, j, e);
        score[tile][j][e] = weight * factor;
        dscore[tile][j][e] = weight * (dscore[tile][j][e] * factor - row_stats.dot);
      }
    }
  }
}

/// The same for general kernels, which form M P and E. visit(dS, row, column) is called with four
/// elements of dS, and the row and the column of the first element.
template <bool by_query, int kTiles, int kStep, class T, class Stats, class Visit>
__device__ void form_general_dscores(Sums<kTiles, kStep>& score, Sums<kTiles, kStep>& dscore,
                                     const AttentionDims<T>& p, int b, int h,
                                     const Scores<T, by_query>& scores, const Stats& stats,
                                     const Mask<by_query, kTiles, kStep>& mask, int first_row,
                                     int first_column, Visit visit) {
  uint32_t kept[kTiles];
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    kept[tile] = p.dropout ? Dropout(p, b, h).template kept<by_query, kStep>(
                                 first_row + (warp() * kTiles + tile) * 16, first_column)
                           : ~0u;
  }
#pragma unroll
  for (int j = 0; j < kStep / 8; ++j) {
    const auto& columns = stats.columns(j);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const int row = first_row + row_of<kTiles>(tile, 0), column = first_column + column_of(j, 0);
      fragments::form_dscores(
          score[tile][j], dscore[tile][j], scores, p.kept, mask.bits(tile, j), kept[tile] >> 4 * j,
          [&](int e) { return columns(tile, e); }, row, column,
          [&](const float(&ds)[4]) { visit(ds, row, column); });
    }
  }
}

}  // namespace sash::cuda::mma
