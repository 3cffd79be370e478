#pragma once

#include "../common/scores.cuh"
#include "shapes.cuh"

/// Masks. Rows of accumulators are queries (`by_query`) or keys.
namespace sash::cuda::mma {

/// The visible pairs of one step in this lane's rows.
template <bool by_query, int kTiles, int kStep>
class Mask {
 public:
  /// `first_row` is the block's first query or key. Full steps of plain kernels need no mask.
  template <bool plain, class T>
  __device__ void load(const AttentionDims<T>& p, const Step& step, int b, int first_row) {
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
        set(tile, half, word >> step.part);
      }
    }
  }

  /// Whether sum[tile][j][e] is visible.
  __device__ bool operator()(int tile, int j, int e) const {
    return word_[tile][e / 2][j / 4] >> (j % 4 * 8 + e % 2) & 1;
  }
  /// Bit e: whether sum[tile][j][e] is visible.
  __device__ uint32_t bits(int tile, int j) const {
    const int at = j % 4 * 8;
    return (word_[tile][0][j / 4] >> at & 3) | (word_[tile][1][j / 4] >> at & 3) << 2;
  }

 private:
  __device__ void set(int tile, int half, uint64_t word) {
    word >>= lane() % 4 * 2;
    word_[tile][half][0] = static_cast<uint32_t>(word);
    if constexpr (kStep > 32) word_[tile][half][1] = static_cast<uint32_t>(word >> 32);
  }

  template <class T>
  static __device__ uint64_t general(const AttentionDims<T>& p, const Step& step, int b, int row) {
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

/// The factors of dropout for the scores of a step. They are 1 unless the kernel is of
/// Kind::dropout.
template <Kind kind, bool by_query, int kTiles, int kStep>
class Factors {
 public:
  /// Starts to load the factors of a step, for rows from `first_row` on.
  template <class T>
  __device__ void load(const AttentionDims<T>& p, const KeptTile* tiles, const Step& step, int b,
                       int h, int first_row) {
    if constexpr (kind == Kind::dropout) {
      const int block = first_row / 64, query = by_query ? block : step.block,
                key = by_query ? step.block : block;
      const KeptTile& bits = tiles[p.kept_tile(p.block_of(b, h) + query, key)];
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const int rows = (first_row + row_of<kTiles>(tile, 0)) % 64 / 16;
        kept_[tile] =
            bits.word[kept_word_of<by_query>(rows)] >> kept_place<by_query>(step.part / 8, 0);
      }
      factor_ = p.kept;
    }
  }
  /// The factor of sum[tile][j][e].
  __device__ float operator()(int tile, int j, int e) const {
    if constexpr (kind == Kind::dropout) {
      return kept_[tile] >> kept_place<by_query>(j, e) & 1 ? factor_ : 0.f;
    }
    return 1;
  }

 private:
  uint32_t kept_[kTiles];
  float factor_;
};

}  // namespace sash::cuda::mma
