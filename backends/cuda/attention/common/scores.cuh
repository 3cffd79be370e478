#pragma once

#include "fragments.cuh"

/// For general kernels: scores with all options, weights and their gradients, and dropout.
/// Functions process four neighbouring accumulators at a time.
namespace sash::cuda::fragments {

/// The scores of one head. Rows are queries (`by_query`) or keys.
template <class T, bool by_query>
class Scores {
 public:
  __device__ Scores(const AttentionDims<T>& p, int b, int h)
      : p_(p),
        bias_(p.bias ? p.bias + b * p.bias_step[0] + h * p.bias_step[1] : nullptr),
        relative_(p.relative ? p.relative + h * p.relative_step[0] : nullptr),
        has_options_(p.softcap > 0 || p.bias || p.relative),
        alibi_(p.slopes ? p.slopes[h * p.slope_step] : 0.f) {}

  /// Turns products, sum[j] of this lane, into scores to the base 2. Sets `cap_grad` to the
  /// derivatives of the scores with respect to the scaled products. Element 0 is at `row` and
  /// `column`.
  __device__ void operator()(float (&score)[4], float (&cap_grad)[4], int row, int column) const {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      score[e] *= p_.scale;
      cap_grad[e] = 1;
    }
    const int distance = key(row, column, 0) - query(row, column, 0) - (p_.keys - p_.queries);
    if (has_options_) {
      const Quad quad =
          add_options(p_, bias_, relative_, {{score[0], score[1], score[2], score[3]}, {}}, row,
                      column, distance);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        score[e] = quad.score[e];
        cap_grad[e] = quad.cap_grad[e];
      }
    }
    const float distance_of_first = static_cast<float>(distance);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      score[e] = fmaf(-alibi_, fabsf(distance_of_first + static_cast<float>(relative_distance(e))),
                      score[e]) *
                 kLog2E;
    }
  }

  static __device__ int query(int row, int column, int e) {
    return by_query ? row + 8 * (e / 2) : column + e % 2;
  }
  static __device__ int key(int row, int column, int e) {
    return by_query ? column + e % 2 : row + 8 * (e / 2);
  }

 private:
  struct Quad {
    float score[4], cap_grad[4];
  };

  /// Softcap, bias and relative bias. Not inlined, so that kernels stay short.
  static __device__ __noinline__ Quad add_options(const AttentionDims<T>& p, const T* bias,
                                                  const float* relative, Quad x, int row,
                                                  int column, int distance) {
#pragma unroll
    for (float& cap_grad : x.cap_grad) cap_grad = 1;
    if (p.softcap > 0) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float tanh = tanh_approx(__fdividef(x.score[e], p.softcap));
        x.cap_grad[e] = 1 - tanh * tanh;
        x.score[e] = p.softcap * tanh;
      }
    }
    if (bias) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int i = query(row, column, e), j = key(row, column, e);
        if (i < p.queries && j < p.keys) {
          x.score[e] += widen(bias[i * p.bias_step[2] + j * p.bias_step[3]]);
        }
      }
    }
    if (relative) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int nearest = max(-p.radius, min(p.radius, distance + relative_distance(e)));
        x.score[e] += relative[(nearest + p.radius) * p.relative_step[1]];
      }
    }
    return x;
  }

  /// The distance of the key of element e from its query, minus the same distance of element 0.
  static constexpr __device__ int relative_distance(int e) {
    return by_query ? e % 2 - 8 * (e / 2) : 8 * (e / 2) - e % 2;
  }

  const AttentionDims<T>& p_;
  const T* bias_;
  const float* relative_;
  bool has_options_;
  float alibi_;
};

/// Draws which probabilities of one head dropout keeps. All lanes of a warp call each function
/// together.
template <class T>
class Dropout {
 public:
  __device__ Dropout(const AttentionDims<T>& p, int b, int h) : p_(p), first_(p.row_of(b, h)) {}

  /// Bit 4 j + e tells whether dropout keeps sum[j][e]. The rows of the warp start at `row`, a
  /// multiple of 16, its kStep columns at `column`, a multiple of kStep. Rows are queries
  /// (`by_query`) or keys.
  template <bool by_query, int kStep>
  __device__ uint32_t kept(int row, int column) const {
    return by_query ? of_queries<kStep>(row, column) : of_keys<kStep>(row, column);
  }

 private:
  static constexpr int kWord = kernels::AttentionDropout::kKeys;

  /// The four lanes with the same two rows draw a word each: of one row, and of one half of the
  /// step.
  template <int kStep>
  __device__ uint32_t of_queries(int row, int column) const {
    const int t = lane() % 4, query = row + lane() / 4 + 8 * (t % 2);
    uint32_t drawn = 0;
    if (t / 2 * kWord < kStep) drawn = p_.kept_word(first_ + query, column / kWord + t / 2);
    uint32_t bits = 0;
#pragma unroll
    for (int part = 0; part < (kStep + kWord - 1) / kWord; ++part) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t word = __shfl_sync(~0u, drawn, lane() - t + 2 * part + half);
        const uint32_t mine = word >> (column % kWord + 2 * t);
#pragma unroll
        for (int j = 0; j < min(kStep, kWord) / 8; ++j) {
          bits |= (mine >> 8 * j & 3) << (4 * (part * (kWord / 8) + j) + 2 * half);
        }
      }
    }
    return bits;
  }

  /// Each lane draws the words of one or two queries, which hold the keys of all rows of the warp.
  template <int kStep>
  __device__ uint32_t of_keys(int row, int column) const {
    const int t = lane() % 4, shift = row % kWord + lane() / 4;
    uint32_t drawn[(kStep + 31) / 32] = {};
#pragma unroll
    for (int part = 0; part < (kStep + 31) / 32; ++part) {
      if (lane() < kStep)
        drawn[part] = p_.kept_word(first_ + column + 32 * part + lane(), row / kWord);
    }
    uint32_t bits = 0;
#pragma unroll
    for (int j = 0; j < kStep / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const uint32_t word = __shfl_sync(~0u, drawn[j / 4], 8 * (j % 4) + 2 * t + e) >> shift;
        bits |= ((word & 1) | (word >> 6 & 4)) << (4 * j + e);
      }
    }
    return bits;
  }

  const AttentionDims<T>& p_;
  const int64_t first_;
};

/// Turns products q . k into M P, where M are the factors of dropout, and products g . v into E,
/// which is dS = P (M dP - D) times the derivative of the softcap. Bit e of `seen` tells whether
/// element e is visible, bit e of `kept` whether dropout keeps it. stats(e) returns the statistics
/// of its query. visit(dS) is called with dS, which is 0 for hidden pairs.
template <class T, bool by_query, class Stats, class Visit>
__device__ void form_dscores(float (&score)[4], float (&dscore)[4],
                             const Scores<T, by_query>& scores, float factor, uint32_t seen,
                             uint32_t kept, Stats stats, int row, int column, Visit visit) {
  float cap_grad[4];
  scores(score, cap_grad, row, column);
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const RowStats of_row = stats(e);
    const float weight = seen >> e & 1 ? exp2_approx(score[e] - of_row.lse) : 0.f;
    const float mine = kept >> e & 1 ? factor : 0.f;
    dscore[e] = weight * (dscore[e] * mine - of_row.dot);
    score[e] = weight * mine;
  }
  visit(dscore);
#pragma unroll
  for (int e = 0; e < 4; ++e) dscore[e] *= cap_grad[e];
}

/// Stores four neighbouring elements of dS to dbias, whose rows are queries and have `keys`
/// elements. The first element is at `query` and `key`. Zeros are not stored, because dbias was
/// cleared before.
__device__ inline void put_dbias(float* dbias, int64_t keys, const float (&ds)[4], int64_t query,
                                 int key) {
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    if (ds[e] != 0) dbias[(query + 8 * (e / 2)) * keys + key + e % 2] = ds[e];
  }
}

}  // namespace sash::cuda::fragments
