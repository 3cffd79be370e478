#pragma once

#include "../common/kept.cuh"
#include "blocks.cuh"

namespace sash::cuda::hopper {

/// Sets a thread's scores of a block to `value` where the bit (Mask::of_thread) is 0. A thread has
/// 32 scores of a block.
__device__ inline void replace_hidden(float* score, uint32_t bits, float value) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      float* pair = score + 4 * j + 2 * half;
      if (!(bits >> (16 * half + 2 * j) & 1)) pair[0] = value;
      if (!(bits >> (16 * half + 2 * j + 1) & 1)) pair[1] = value;
    }
  }
}

/// Whether dropout keeps score i of a thread's 32 scores of a block. `kept` is the thread's word of
/// a bit tile.
template <bool by_query>
__device__ bool keeps(uint32_t kept, int i) {
  return kept >> kept_place<by_query>(i / 4, i % 4) & 1;
}

/// This thread's word of a bit tile.
template <bool by_query>
__device__ uint32_t kept_word(const KeptTile& tile) {
  return tile.word[kept_word_of<by_query>(warp() % 4)];
}

/// The visible pairs among the scores [64][64 kBlocks] of a group. Rows are queries (`by_query`) or
/// keys.
template <int kBlocks, bool by_query>
class Mask {
 public:
  /// Starts to load the mask of block row `number` of `work`. `bounded`: whether a call may have
  /// bounds.
  template <bool bounded = true, class T, int kBlockRows>
  __device__ void load(const AttentionDims<T>& p, const SharedWorkTile<kBlockRows>& work,
                       const Step<kBlockRows, kBlocks>& step, int number) {
    const uint64_t* tiles = by_query ? p.map.bits : p.map.key_bits;
#pragma unroll
    for (int part = 0; part < kBlocks; ++part) {
      int tile = step.tile[number][part];
      const bool cut = bounded && tile >= kBounded;
      if (cut) tile -= kBounded + 1;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        word_[part][half] = tile == kEmpty ? 0 : ~uint64_t{0};
        if (tile < 0) continue;
        word_[part][half] = __ldg(tiles + static_cast<int64_t>(tile) * kBlock + row_of(half));
      }
      if (cut) {
        apply_bounds(word_[part], p, p.bounds.ranges + p.bounds.head(work.b, step.h) * p.queries,
                     work.block_row[number] * kBlock, step.block[part] * kBlock);
      }
    }
  }

  /// Bit e: whether sum[4 j + e] is visible.
  __device__ uint32_t bits(int j) const {
    const int at = j % 8 * 8 + lane() % 4 * 2;
    const auto& word = word_[j / 8];
    return static_cast<uint32_t>((word[0] >> at & 3) | (word[1] >> at & 3) << 2);
  }

  /// The bits of this thread for block `part`: bit 16 half + 2 j + e belongs to sum[4 j + 2 half +
  /// e].
  __device__ uint32_t of_thread(int part) const {
    // A thread has two bits in each byte of a row's word. They are gathered to 8 bits for each half
    // of the word.
    uint32_t bits = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint64_t word = word_[part][half] >> (lane() % 4 * 2);
      bits |= (gather(static_cast<uint32_t>(word)) | gather(static_cast<uint32_t>(word >> 32)) << 8)
              << 16 * half;
    }
    return bits;
  }

  /// Sets hidden scores to -infinity.
  __device__ void apply(float (&score)[32 * kBlocks]) const {
#pragma unroll
    for (int part = 0; part < kBlocks; ++part) {
      replace_hidden(score + 32 * part, of_thread(part), -kInfinity);
    }
  }

 private:
  /// Gathers the two low bits of each byte to eight bits. The partial products do not overlap.
  static __device__ uint32_t gather(uint32_t x) { return (x & 0x03030303u) * 0x01041040u >> 24; }

  /// Clears the bits that the ranges of a head's queries hide, in a block that starts at `row` and
  /// `column`. Only the bits of this thread's columns are correct afterwards. All lanes of a warp
  /// call this.
  template <class T>
  static __device__ void apply_bounds(uint64_t (&word)[2], const AttentionDims<T>& p,
                                      const int2* ranges, int row, int column) {
    if constexpr (by_query) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int2 seen = ranges[min(row + row_of(half), p.queries - 1)];
        word[half] &= bit_range(seen.x - column, seen.y - column);
      }
    } else {
      // Which of the warp's 16 keys the queries `lane` (low half) and `lane + 32` (high half) see.
      uint32_t keys = 0;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int2 seen = ranges[min(column + lane() + 32 * half, p.queries - 1)];
        const int first = row + row_of_warp();
        keys |= (static_cast<uint32_t>(bit_range(seen.x - first, seen.y - first)) & 0xFFFF)
                << 16 * half;
      }
      uint32_t bits[2][2] = {};  // [row][half of the columns]
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const int query = column_of(j / 2, j % 2);
        const uint32_t mine = __shfl_sync(~0u, keys, query) >> lane() / 4;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          bits[half][0] |= (mine >> 8 * half & 1) << query;
          bits[half][1] |= (mine >> (16 + 8 * half) & 1) << query;
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        word[half] &= bits[half][0] | uint64_t{bits[half][1]} << 32;
      }
    }
  }

  uint64_t word_[kBlocks][2];
};

}  // namespace sash::cuda::hopper
