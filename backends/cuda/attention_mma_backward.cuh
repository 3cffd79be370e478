#pragma once

#include "attention_mma_scores.cuh"

/// What the two backward kernels share: from the saved log-sum-exp both form, each for itself, the
/// probabilities P and the slopes dS of their scores. So every sum has one owner and one order.
namespace sash::cuda::mma {

/// Of a query: its log-sum-exp to the base 2, and D = rowsum(g . out) - g_lse. Past the end of the
/// queries, +infinity and 0, from which follows P = 0.
struct alignas(8) RowTerms {
  float lse, dot;
};

template <class T>
struct Backward {
  Problem<T> problem;
  Rows<const T> q, k, v, g, out;
  const float *lse, *g_lse;
  Rows<T> dq, dk, dv;
  float* dbias;
  RowTerms* terms;  ///< [B, H, padded_queries()], made by the kernel of dq
  /// [B, H, blocks of dq's kernel, 2 R + 1]: sums along diagonals; null if not wanted.
  float* diagonals;

  /// Whole blocks of the map.
  __host__ __device__ int padded_queries() const {
    return static_cast<int>(problem.map.query_blocks) * kBlockQueries;
  }
};

/// Queries of a block of dq's general kernel, for heads of `features`.
template <class T>
int query_rows(int64_t features);

/// Writes dq, the terms, dbias and the diagonals.
template <class T>
void backward_queries(const KernelContext& context, const Backward<T>& call);

/// Then dk and dv.
template <class T>
void backward_keys(const KernelContext& context, const Backward<T>& call);

/// The terms of the rows of a lane's sums, where these are queries.
template <int kTiles>
struct TermsOfRows {
  RowTerms row[kTiles][2];
  __device__ const TermsOfRows& columns(int) const { return *this; }
  __device__ RowTerms operator()(int tile, int e) const { return row[tile][e / 2]; }
};

/// The terms of columns, in shared memory.
struct TermsOfColumns {
  struct Pair {
    RowTerms of[2];
    __device__ RowTerms operator()(int, int e) const { return of[e % 2]; }
  };
  const RowTerms* shared;
  __device__ Pair columns(int j) const {
    const float4 x = *reinterpret_cast<const float4*>(shared + column_of(j, 0));
    return {{{x.x, x.y}, {x.z, x.w}}};
  }
};

/// From products q . k and g . v to P = 2^(exponent score - lse) and dS = P (slope - D).
template <bool masked, int kTiles, int kStep, class Terms, class M>
__device__ void form_slopes(Sums<kTiles, kStep>& score, Sums<kTiles, kStep>& slope, float exponent,
                            const Terms& terms, const M& mask) {
#pragma unroll
  for (int j = 0; j < kStep / 8; ++j) {
    const auto& columns = terms.columns(j);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const RowTerms term = columns(tile, e);
        float weight = exp2_approx(fmaf(score[tile][j][e], exponent, -term.lse));
        if (masked && !mask(tile, j, e)) weight = 0;
        score[tile][j][e] = weight;
        slope[tile][j][e] = weight * (slope[tile][j][e] - term.dot);
      }
    }
  }
}

/// The same for general kernels: P with dropout's factors M, and E = dS times the derivative of the
/// softcap. see(dS[4], query, key) gets what lies between, 0 for hidden pairs, and the first one's
/// place.
template <bool by_query, int kTiles, int kStep, class T, class Terms, class See>
__device__ void form_general_slopes(Sums<kTiles, kStep>& score, Sums<kTiles, kStep>& slope,
                                    const Problem<T>& p, int b, int h,
                                    const Scores<T, by_query>& scores, const Terms& terms,
                                    const Mask<by_query, kTiles, kStep>& mask, int first_row,
                                    int first_column, See see) {
  using HeadScores = Scores<T, by_query>;
  uint32_t keep[kTiles] = {};
  if (p.dropout) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      keep[tile] = Dropout(p, b, h).template kept<by_query, kStep>(
          first_row + (warp() * kTiles + tile) * 16, first_column);
    }
  }
#pragma unroll
  for (int j = 0; j < kStep / 8; ++j) {
    const auto& columns = terms.columns(j);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const int row = first_row + row_of<kTiles>(tile, 0), column = first_column + column_of(j, 0);
      float factor[4] = {1, 1, 1, 1};
      if (p.dropout) {
#pragma unroll
        for (int e = 0; e < 4; ++e) factor[e] = keep[tile] >> (4 * j + e) & 1 ? p.kept : 0.f;
      }
      float(&s)[4] = score[tile][j], (&ds)[4] = slope[tile][j];
      float bend[4];
      scores(s, bend, row, column);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const RowTerms term = columns(tile, e);
        const float weight = mask(tile, j, e) ? exp2_approx(s[e] - term.lse) : 0.f;
        ds[e] = weight * (ds[e] * factor[e] - term.dot);
        s[e] = weight * factor[e];
      }
      see(ds, HeadScores::query(row, column, 0), HeadScores::key(row, column, 0));
#pragma unroll
      for (int e = 0; e < 4; ++e) ds[e] *= bend[e];
    }
  }
}

}  // namespace sash::cuda::mma
