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

/// Draws which probabilities of one head dropout keeps.
class Dropout {
 public:
  template <class T>
  __device__ Dropout(const AttentionDims<T>& p, int b, int h)
      : seed_(p.random.seed),
        base_((p.random.base ? *p.random.base : 0) + p.random.offset),
        first_(static_cast<uint64_t>(p.row_of(b, h)) * static_cast<uint64_t>(p.keys)),
        threshold_(p.threshold),
        keys_(p.keys) {}

  /// Bit 4 j + e tells whether dropout keeps sum[j][e]. The rows of the warp start at `row`, its
  /// kStep columns at `column`.
  template <bool by_query, int kStep>
  __device__ uint32_t kept(int row, int column) const {
    uint32_t bits = 0;
#pragma unroll 4
    for (int j = 0; j < kStep / 8; ++j) {
      bits |= (by_query ? of_queries(row, column + 8 * j) : of_keys(row, column + 8 * j)) << 4 * j;
    }
    return bits;
  }

 private:
  /// The four bits e of one j. Rows i + g and i + g + 8 are queries, columns [j, j + 8) are keys. A
  /// Philox block covers four keys of a query, which belong to two lanes. One lane draws the block
  /// of row g, the other that of row g + 8.
  __device__ uint32_t of_queries(int i, int j) const {
    const int t = lane() % 4;
    i += lane() / 4;
    if (keys_ % 4 != 0) return one_by_one(i, j + 2 * t, 8, 1);
    const bool odd = t % 2 == 1;
    const uint32_t drawn = four(odd ? i + 8 : i, j + t / 2 * 4);
    const uint32_t low = drawn & 3, high = drawn >> 2;
    const uint32_t got = __shfl_xor_sync(~0u, odd ? low : high, 1);
    return odd ? got | high << 2 : low | got << 2;
  }

  /// The same if rows are keys and columns are queries. Four lanes need four blocks, for two runs
  /// of four keys of two queries. Each lane draws one block.
  __device__ uint32_t of_keys(int j, int i) const {
    const int g = lane() / 4, t = lane() % 4;
    i += 2 * t;
    if (keys_ % 4 != 0) {
      const uint32_t bits = one_by_one(i, j + g, 1, 8);
      return (bits & 9) | (bits << 1 & 4) | (bits >> 1 & 2);
    }
    const int mine = g % 4;
    uint32_t drawn = four(i + mine % 2, j + mine / 2 * 8 + g / 4 * 4) << 4 * mine;
    drawn |= __shfl_xor_sync(~0u, drawn, 4);
    drawn |= __shfl_xor_sync(~0u, drawn, 8);
    drawn >>= mine;
    return (drawn & 1) | (drawn >> 3 & 2) | (drawn >> 6 & 4) | (drawn >> 9 & 8);
  }

  __device__ uint64_t element(int i, int j) const {
    return first_ + static_cast<uint64_t>(i) * static_cast<uint64_t>(keys_) +
           static_cast<uint64_t>(j);
  }
  __device__ uint32_t four(int i, int j) const {
    const PhiloxBlock block = philox(seed_, base_ + element(i, j) / 4);
    uint32_t bits = 0;
#pragma unroll
    for (int e = 0; e < 4; ++e) bits |= static_cast<uint32_t>(block.lane[e] >= threshold_) << e;
    return bits;
  }
  /// The bits of the pairs (i, j), (i, j + across), (i + down, j), (i + down, j + across).
  __device__ uint32_t one_by_one(int i, int j, int down, int across) const {
    uint32_t bits = 0;
#pragma unroll 1
    for (int e = 0; e < 4; ++e) {
      const uint64_t at = element(i + e / 2 * down, j + e % 2 * across);
      const PhiloxBlock block = philox(seed_, base_ + at / 4);
      const uint32_t low = at & 1 ? block.lane[1] : block.lane[0];
      const uint32_t high = at & 1 ? block.lane[3] : block.lane[2];
      bits |= static_cast<uint32_t>((at & 2 ? high : low) >= threshold_) << e;
    }
    return bits;
  }

  uint64_t seed_, base_, first_;
  uint32_t threshold_;
  int keys_;
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
