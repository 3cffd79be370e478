#pragma once

#include "attention_fragments.cuh"

/// From products of queries and keys to scores, weights and slopes in general kernels: what options
/// add, and what dropout keeps. Four neighbouring sums at a time.
namespace sash::cuda::fragments {

/// The scores of one head in general kernels. Rows of sums are queries (`by_query`) or keys.
template <class T, bool by_query>
class Scores {
 public:
  __device__ Scores(const Problem<T>& p, int b, int h)
      : p_(p),
        bias_(p.bias ? p.bias + b * p.bias_step[0] + h * p.bias_step[1] : nullptr),
        relative_(p.relative ? p.relative + h * p.relative_step[0] : nullptr),
        rare_(p.softcap > 0 || p.bias || p.relative),
        alibi_(p.slopes ? p.slopes[h * p.slope_step] : 0.f) {}

  /// From the products sum[j] of this lane to scores to the base 2. `bend` becomes the derivatives
  /// of scores by scaled products. Element 0 is that of `row` and `column`.
  __device__ void operator()(float (&score)[4], float (&bend)[4], int row, int column) const {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      score[e] *= p_.scale;
      bend[e] = 1;
    }
    const int distance = key(row, column, 0) - query(row, column, 0) - (p_.keys - p_.queries);
    if (rare_) {
      const Quad quad =
          add_rare(p_, bias_, relative_, {{score[0], score[1], score[2], score[3]}, {}}, row,
                   column, distance);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        score[e] = quad.score[e];
        bend[e] = quad.bend[e];
      }
    }
    const float apart = static_cast<float>(distance);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      score[e] = fmaf(-alibi_, fabsf(apart + static_cast<float>(further(e))), score[e]) * kLog2E;
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
    float score[4], bend[4];
  };

  /// Softcap, bias and relative bias. Called, so that what is between calls stays short.
  static __device__ __noinline__ Quad add_rare(const Problem<T>& p, const T* bias,
                                               const float* relative, Quad x, int row, int column,
                                               int distance) {
#pragma unroll
    for (float& bend : x.bend) bend = 1;
    if (p.softcap > 0) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float bent = tanh_approx(__fdividef(x.score[e], p.softcap));
        x.bend[e] = 1 - bent * bent;
        x.score[e] = p.softcap * bent;
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
        const int nearest = max(-p.radius, min(p.radius, distance + further(e)));
        x.score[e] += relative[(nearest + p.radius) * p.relative_step[1]];
      }
    }
    return x;
  }

  /// How much further its key is from its query than that of element 0.
  static constexpr __device__ int further(int e) {
    return by_query ? e % 2 - 8 * (e / 2) : 8 * (e / 2) - e % 2;
  }

  const Problem<T>& p_;
  const T* bias_;
  const float* relative_;
  bool rare_;
  float alibi_;
};

/// What dropout keeps of one head's probabilities.
class Dropout {
 public:
  template <class T>
  __device__ Dropout(const Problem<T>& p, int b, int h)
      : seed_(p.random.seed),
        base_((p.random.base ? *p.random.base : 0) + p.random.offset),
        first_(static_cast<uint64_t>(p.row_of(b, h)) * static_cast<uint64_t>(p.keys)),
        threshold_(p.threshold),
        keys_(p.keys) {}

  /// Bit 4 j + e: whether sum[j][e] is kept, for a warp's rows from `row` on and kStep columns from
  /// `column` on. Drawn in a loop of its own, as Philox is long.
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
  /// Bit e for one j, where rows i + g and i + g + 8 are queries and columns [j, j + 8) keys. A
  /// Philox block is four keys of a query, two lanes' share: one draws that of row g, the other
  /// that of row g + 8.
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

  /// The same where rows are keys and columns queries: the blocks of four lanes' shares are those
  /// of two keys' quarters times two queries, one for each lane.
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
  /// Bits of (i, j), (i, j + across), (i + down, j), (i + down, j + across).
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

/// From products q . k and g . v to M P, with dropout's factors M, and to E = dS times the
/// softcap's derivative, dS = P (M slope - D). Bit e of `seen` and `kept` says whether element e is
/// visible, and kept; term(e) are those of its query. see(dS) gets what lies between, 0 for hidden
/// pairs.
template <class T, bool by_query, class Term, class See>
__device__ void form_slopes(float (&score)[4], float (&slope)[4], const Scores<T, by_query>& scores,
                            float factor, uint32_t seen, uint32_t kept, Term term, int row,
                            int column, See see) {
  float bend[4];
  scores(score, bend, row, column);
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const RowTerms of_row = term(e);
    const float weight = seen >> e & 1 ? exp2_approx(score[e] - of_row.lse) : 0.f;
    const float mine = kept >> e & 1 ? factor : 0.f;
    slope[e] = weight * (slope[e] * mine - of_row.dot);
    score[e] = weight * mine;
  }
  see(slope);
#pragma unroll
  for (int e = 0; e < 4; ++e) slope[e] *= bend[e];
}

/// Of four neighbours those that are not 0, to rows of `keys` elements: the rest are 0 before. The
/// first is at `query` and `key`, rows are queries.
__device__ inline void put_dbias(float* dbias, int64_t keys, const float (&ds)[4], int64_t query,
                                 int key) {
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    if (ds[e] != 0) dbias[(query + 8 * (e / 2)) * keys + key + e % 2] = ds[e];
  }
}

}  // namespace sash::cuda::fragments
