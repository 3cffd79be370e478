#pragma once

#include "attention_mma_scores.cuh"

/// What the two backward kernels share: from the saved log-sum-exp both form, each for itself, the
/// probabilities P and the slopes dS of their scores. So every sum has one owner and one order.
namespace sash::cuda::mma {

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

/// The same for general kernels: P with dropout's factors, and E. see(dS, query, key) gets what
/// lies between, and the place of the first of four.
template <bool by_query, int kTiles, int kStep, class T, class Terms, class See>
__device__ void form_general_slopes(Sums<kTiles, kStep>& score, Sums<kTiles, kStep>& slope,
                                    const Problem<T>& p, int b, int h,
                                    const Scores<T, by_query>& scores, const Terms& terms,
                                    const Mask<by_query, kTiles, kStep>& mask, int first_row,
                                    int first_column, See see) {
  uint32_t kept[kTiles];
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    kept[tile] = p.dropout ? Dropout(p, b, h).template kept<by_query, kStep>(
                                 first_row + (warp() * kTiles + tile) * 16, first_column)
                           : ~0u;
  }
#pragma unroll
  for (int j = 0; j < kStep / 8; ++j) {
    const auto& columns = terms.columns(j);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const int row = first_row + row_of<kTiles>(tile, 0), column = first_column + column_of(j, 0);
      fragments::form_slopes(
          score[tile][j], slope[tile][j], scores, p.kept, mask.seen(tile, j), kept[tile] >> 4 * j,
          [&](int e) { return columns(tile, e); }, row, column,
          [&](const float(&ds)[4]) { see(ds, row, column); });
    }
  }
}

}  // namespace sash::cuda::mma
