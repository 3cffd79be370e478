#pragma once

#include "attention_mma_problem.cuh"

/// From products of queries and keys to scores: what is visible, what general kernels add, and what
/// dropout keeps. Rows of a lane's sums are queries (`by_query`) or keys.
namespace sash::cuda::mma {

/// Which scores of one step this lane's rows see.
template <bool by_query, int kTiles, int kStep>
class Mask {
 public:
  /// `first_row` is the block's first query or key. Full steps of plain kernels need no mask.
  template <bool plain, class T>
  __device__ void load(const Problem<T>& p, const Step& step, int b, int first_row) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = first_row + row_of<kTiles>(tile, half);
        uint64_t word = ~uint64_t{0};
        if (plain || step.tile >= 0) {
          const uint64_t* tiles = by_query ? p.map.bits : p.map.key_bits;
          word = tiles[static_cast<int64_t>(step.tile) * 64 + row % 64];
        }
        if constexpr (!plain) word &= general(p, step, b, row);
        word >>= step.part + lane() % 4 * 2;
        word_[tile][half][0] = static_cast<uint32_t>(word);
        if constexpr (kStep > 32) word_[tile][half][1] = static_cast<uint32_t>(word >> 32);
      }
    }
  }

  /// Of sum[tile][j][e].
  __device__ bool operator()(int tile, int j, int e) const {
    return word_[tile][e / 2][j / 4] >> (j % 4 * 8 + e % 2) & 1;
  }

 private:
  template <class T>
  static __device__ uint64_t general(const Problem<T>& p, const Step& step, int b, int row) {
    if (row >= (by_query ? p.queries : p.keys)) return 0;
    const int first = step.block * 64;
    uint64_t word = bit_range(0, (by_query ? p.keys : p.queries) - first);
    if (!step.bounded) return word;
    const int2* bounds = p.bounds.ranges + p.bounds.head(b, step.head) * p.queries;
    if constexpr (by_query) {
      word &= bit_range(bounds[row].x - first, bounds[row].y - first);
    } else {
      for (int j = step.part + lane() % 4 * 2; j < step.part + kStep; j += 8) {
        for (int i = j; i < j + 2 && first + i < p.queries; ++i) {
          const int2 seen = bounds[first + i];
          if (row < seen.x || row >= seen.y) word &= ~(uint64_t{1} << i);
        }
      }
    }
    return word;
  }

  uint32_t word_[kTiles][2][kStep > 32 ? 2 : 1];
};

/// 1 - 2 / (exp(2 x) + 1).
__device__ inline float tanh_approx(float x) {
  return 1 - __fdividef(2.f, exp2_approx(2 * kLog2E * x) + 1);
}

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

  /// From the products sum[tile][j] of this lane to scores to the base 2. `bend` becomes the
  /// derivatives of scores by scaled products. Element 0 is that of `row` and `column`.
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

/// Hides what the mask hides.
template <bool by_query, int kTiles, int kStep>
__device__ void hide(Sums<kTiles, kStep>& score, const Mask<by_query, kTiles, kStep>& mask) {
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int j = 0; j < kStep / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (!mask(tile, j, e)) score[tile][j][e] = -kInfinity;
      }
    }
  }
}

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

  /// Bit 4 j + e: whether sum[tile][j][e] is kept, for a tile that starts at `row` and kStep
  /// columns from `column` on. Drawn in a loop of its own, as Philox is long.
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

}  // namespace sash::cuda::mma
