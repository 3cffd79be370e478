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
  /// Bits [from, to) of those of one block, where 0 stands for its first row or column.
  static __device__ uint64_t range(int from, int to) {
    if (to <= 0 || from >= 64) return 0;
    const uint64_t low = from > 0 ? ~uint64_t{0} << from : ~uint64_t{0};
    return to < 64 ? low & ~(~uint64_t{0} << to) : low;
  }

  template <class T>
  static __device__ uint64_t general(const Problem<T>& p, const Step& step, int b, int row) {
    if (row >= (by_query ? p.queries : p.keys)) return 0;
    const int first = step.block * 64;
    uint64_t word = range(0, (by_query ? p.keys : p.queries) - first);
    if (!step.bounded) return word;
    const int2* bounds = p.bounds + p.bounds_head(b, step.head) * p.queries;
    if constexpr (by_query) {
      word &= range(bounds[row].x - first, bounds[row].y - first);
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
        alibi_(p.slopes ? p.slopes[h * p.slope_step] : 0.f) {}

  /// From the products sum[tile][j] of this lane to scores to the base 2. `bend` becomes the
  /// derivatives of scores by scaled products. Element 0 is that of `row` and `column`.
  __device__ void operator()(float (&score)[4], float (&bend)[4], int row, int column) const {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      score[e] *= p_.scale;
      bend[e] = 1;
    }
    if (p_.softcap > 0) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float bent = tanh_approx(score[e] / p_.softcap);
        bend[e] = 1 - bent * bent;
        score[e] = p_.softcap * bent;
      }
    }
    if (bias_) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int i = query(row, column, e), j = key(row, column, e);
        if (i < p_.queries && j < p_.keys) {
          score[e] += widen(bias_[i * p_.bias_step[2] + j * p_.bias_step[3]]);
        }
      }
    }
    const int distance = key(row, column, 0) - query(row, column, 0) - (p_.keys - p_.queries);
    if (relative_) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int nearest = max(-p_.radius, min(p_.radius, distance + further(e)));
        score[e] += relative_[(nearest + p_.radius) * p_.relative_step[1]];
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
  /// How much further its key is from its query than that of element 0.
  static constexpr __device__ int further(int e) {
    return by_query ? e % 2 - 8 * (e / 2) : 8 * (e / 2) - e % 2;
  }

  const Problem<T>& p_;
  const T* bias_;
  const float* relative_;
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

/// Bit e: whether dropout keeps number e of a Philox block.
__device__ inline uint32_t kept_of_block(uint64_t seed, uint64_t counter, uint32_t threshold) {
  const PhiloxBlock block = philox(seed, counter);
  uint32_t bits = 0;
#pragma unroll
  for (int e = 0; e < 4; ++e) bits |= static_cast<uint32_t>(block.lane[e] >= threshold) << e;
  return bits;
}

/// The same, called: for what need not be fast.
__device__ __noinline__ inline uint32_t call_kept_of_block(uint64_t seed, uint64_t counter,
                                                           uint32_t threshold) {
  return kept_of_block(seed, counter, threshold);
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

  /// Bit e: whether sum[tile][j][e] is kept, where rows [i, i + 8) are queries, lane by lane i + g
  /// and i + g + 8, and columns [j, j + 8) are keys. A Philox block is four keys of a query, two
  /// lanes' share: one draws that of row g, the other that of row g + 8.
  __device__ uint32_t of_queries(int i, int j) const {
    const int t = lane() % 4;
    i += lane() / 4;
    if (keys_ % 4 != 0) {
      j += 2 * t;
      return one(i, j) | one(i, j + 1) << 1 | one(i + 8, j) << 2 | one(i + 8, j + 1) << 3;
    }
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
      j += g;
      return one(i, j) | one(i + 1, j) << 1 | one(i, j + 8) << 2 | one(i + 1, j + 8) << 3;
    }
    const int mine = g % 4;
    uint32_t drawn = four(i + mine % 2, j + mine / 2 * 8 + g / 4 * 4) << 4 * mine;
    drawn |= __shfl_xor_sync(~0u, drawn, 4);
    drawn |= __shfl_xor_sync(~0u, drawn, 8);
    drawn >>= mine;
    return (drawn & 1) | (drawn >> 3 & 2) | (drawn >> 6 & 4) | (drawn >> 9 & 8);
  }

 private:
  __device__ uint64_t element(int i, int j) const {
    return first_ + static_cast<uint64_t>(i) * static_cast<uint64_t>(keys_) +
           static_cast<uint64_t>(j);
  }
  __device__ uint32_t one(int i, int j) const { return four(i, j) >> element(i, j) % 4 & 1; }
  __device__ uint32_t four(int i, int j) const {
    return kept_of_block(seed_, base_ + element(i, j) / 4, threshold_);
  }

  uint64_t seed_, base_, first_;
  uint32_t threshold_;
  int keys_;
};

}  // namespace sash::cuda::mma
