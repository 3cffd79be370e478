#pragma once

#include <climits>

#include "attention_hopper_problem.cuh"

/// The walk over the blocks of a call's map, and what of them is visible.
namespace sash::cuda::hopper {

/// What a block of the map is to a line: the number of its bit tile, or one of these. From kCut on,
/// bounds cut the block: kCut + 1 + what it is.
inline constexpr int kWhole = -1, kAbsent = -2, kCut = 1 << 30;
/// The number of no block.
inline constexpr int kNone = INT_MAX;

/// The blocks that any of kLines neighbouring lines lists within bounds, ascending. By all lanes of
/// a warp. Lines are blocks of queries (`by_query`) or keys.
template <class T, int kLines, bool by_query>
class Walk {
 public:
  /// The lines of `work` in head (b, h).
  __device__ Walk(const Problem<T>& p, const WorkAhead& work, int h)
      : p_(p),
        list_(by_query ? p.map.by_query : p.map.by_key),
        line_(__shfl_sync(~0u, work.line, lane() / 2)) {
    const int b = work.b;
    static_assert(2 * kLines <= 32);
    const auto blocks = static_cast<int>(by_query ? p.map.query_blocks : p.map.key_blocks);
    int entry = 0, end = 0;
    if (lane() / 2 < kLines && line_ < blocks) {
      const int64_t at = p.first_line(b, h, blocks) + line_;
      const int full = list_.full_start[at];
      entry = lane() % 2 == 0 ? list_.start[at] : full;
      end = lane() % 2 == 0 ? full : list_.start[at + 1];
      if (p.bounds.ranges) narrow(p.bounds.head(b, h), entry, end);
    }
    end_ = end;
    head_ = within_bounds(read(entry));
    ahead_ = read(entry + 1);
    entry_ = entry + 2;
  }

  __device__ bool more() const { return __any_sync(~0u, head_.block != kNone); }

  /// The next block, or kNone.
  __device__ int next() {
    const int block = __reduce_min_sync(~0u, head_.block);
    const bool mine = block != kNone && head_.block == block;
    const int tile = mine ? head_.tile : kAbsent;
    tile_ = max(tile, __shfl_xor_sync(~0u, tile, 1));
    if (mine) {
      head_ = within_bounds(ahead_);
      ahead_ = read(entry_++);
    }
    return block;
  }

  /// On lanes 2 w: what that block is to line w.
  __device__ int tile() const { return tile_; }

 private:
  // Lanes 2 w and 2 w + 1 go through those that line w sees in part and those that it sees whole.
  struct Entry {
    int block, tile;
  };
  __device__ Entry read(int entry) const {
    if (entry >= end_) return {kNone, kAbsent};
    return {list_.block[entry], lane() % 2 == 0 ? list_.tile[entry] : kWhole};
  }

  /// Leaves of the entries [entry, end) those of blocks that meet the bounds.
  __device__ void narrow(int64_t head, int& entry, int& end) {
    int first, past;
    if constexpr (by_query) {
      const int4 summary = p_.bounds.summary[head * p_.map.query_blocks + line_];
      first = summary.x / kBlock;
      past = (summary.w + kBlock - 1) / kBlock;
      most_lo_ = summary.y;
      least_hi_ = summary.z;
    } else {
      summaries_ = static_cast<int>(head * p_.map.query_blocks);
      const int2 range = p_.bounds.seen_by[head * p_.map.key_blocks + line_];
      first = range.x;
      past = -range.y;
    }
    entry = find(first, entry, end);
    end = max(entry, find(past, entry, end));
  }
  /// The first of the entries [low, high) whose block is not below `block`. Blocks ascend, so it is
  /// no further on than the numbers are; where they are neighbours, it is just there.
  __device__ int find(int block, int low, int high) const {
    if (low >= high) return low;
    high = low + min(high - low, max(0, block - list_.block[low]));
    for (int probe = high - 1; low < high; probe = (low + high) / 2) {
      if (list_.block[probe] < block) {
        low = probe + 1;
      } else {
        high = probe;
      }
    }
    return low;
  }

  /// What bounds leave of an entry.
  __device__ Entry within_bounds(const Entry& entry) const {
    if (entry.block == kNone) return entry;
    const int key = (by_query ? entry.block : line_) * kBlock, past = min(key + kBlock, p_.keys);
    int most_lo = most_lo_, least_hi = least_hi_;
    if (!by_query) {
      if (!p_.bounds.summary) return entry;
      const int4* summary = p_.bounds.summary + summaries_ + entry.block;
      if (summary->x >= past || summary->w <= key) return {entry.block, kAbsent};
      most_lo = summary->y;
      least_hi = summary->z;
    }
    if (most_lo <= key && least_hi >= past) return entry;
    return {entry.block, kCut + 1 + entry.tile};
  }

  const Problem<T>& p_;
  const kernels::BlockList& list_;
  int summaries_ = 0;  ///< where those of this head start, where lines are those of keys
  int most_lo_ = INT_MIN, least_hi_ = INT_MAX;  ///< of the line, where it is one of queries
  int line_;
  int entry_, end_, tile_;
  Entry head_, ahead_;
};

/// What the copying warp says of the blocks in one stage of a ring.
template <int kLines, int kBlocks>
struct Step {
  int block[kBlocks];
  int tile[kLines][kBlocks];
  int h;     ///< the head of the queries
  int last;  ///< whether no step follows

  /// By all lanes of the copying warp.
  __device__ void note(int part, int number, int tile_of_lane) {
    if (lane() == 0) block[part] = number;
    if (lane() % 2 == 0 && lane() / 2 < kLines) tile[lane() / 2][part] = tile_of_lane;
  }
  __device__ void note(int head, bool is_last) {
    if (lane() != 0) return;
    h = head;
    last = is_last;
  }
};

/// Where the scores of a step lie that a line sees: the head, and the first row and column.
struct ScoresAt {
  int b, h, row, column;

  ScoresAt() = default;
  template <int kLines>
  __device__ ScoresAt(const Work<kLines>& work, const Step<kLines, 1>& step, int number)
      : b(work.b), h(step.h), row(work.line[number] * kBlock), column(step.block[0] * kBlock) {}
};

/// Which of the scores [64][64 kBlocks] of a group count. Rows are queries (`by_query`) or keys.
template <int kBlocks, bool by_query>
class Mask {
 public:
  /// Starts to read what `step` shows the line `number` of `work`.
  template <class T, int kLines>
  __device__ void load(const Problem<T>& p, const Work<kLines>& work,
                       const Step<kLines, kBlocks>& step, int number) {
    const uint64_t* bits = by_query ? p.map.bits : p.map.key_bits;
#pragma unroll
    for (int part = 0; part < kBlocks; ++part) {
      int tile = step.tile[number][part];
      const bool cut = tile >= kCut;
      if (cut) tile -= kCut + 1;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        word_[part][half] = tile == kAbsent ? 0 : ~uint64_t{0};
        if (tile < 0) continue;
        word_[part][half] = __ldg(bits + static_cast<int64_t>(tile) * kBlock + row_of(half));
      }
      if (cut) {
        cut_by_bounds(word_[part], p, p.bounds.ranges + p.bounds.head(work.b, step.h) * p.queries,
                      work.line[number] * kBlock, step.block[part] * kBlock);
      }
    }
  }

  /// Bit e: whether sum[4 j + e] counts.
  __device__ uint32_t seen(int j) const {
    const int at = j % 8 * 8 + lane() % 4 * 2;
    const auto& word = word_[j / 8];
    return static_cast<uint32_t>((word[0] >> at & 3) | (word[1] >> at & 3) << 2);
  }

  /// -infinity instead of scores that do not count.
  __device__ void hide(float (&score)[32 * kBlocks]) const {
#pragma unroll
    for (int part = 0; part < kBlocks; ++part) {
      // The thread's own bits of both rows, side by side: 2 in each byte of a word.
      uint32_t bits = 0;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint64_t word = word_[part][half] >> (lane() % 4 * 2);
        bits |=
            (gather(static_cast<uint32_t>(word)) | gather(static_cast<uint32_t>(word >> 32)) << 8)
            << 16 * half;
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          float* pair = score + 4 * (8 * part + j) + 2 * half;
          if (!(bits >> (16 * half + 2 * j) & 1)) pair[0] = -kInfinity;
          if (!(bits >> (16 * half + 2 * j + 1) & 1)) pair[1] = -kInfinity;
        }
      }
    }
  }

 private:
  /// The two low bits of each byte, as eight. No two of the product's parts meet in a bit.
  static __device__ uint32_t gather(uint32_t x) { return (x & 0x03030303u) * 0x01041040u >> 24; }

  /// Clears bits that `ranges`, those of a head's queries, hide from a block that starts at `row`
  /// and `column`. Of a word, only the bits of the thread's own columns count.
  template <class T>
  static __device__ void cut_by_bounds(uint64_t (&word)[2], const Problem<T>& p, const int2* ranges,
                                       int row, int column) {
    if constexpr (by_query) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int2 seen = ranges[min(row + row_of(half), p.queries - 1)];
        word[half] &= bit_range(seen.x - column, seen.y - column);
      }
    } else {
#pragma unroll 1  // rare, and long
      for (int j = 0; j < 16; ++j) {
        const int bit = column_of(j / 2, j % 2);
        const int2 seen = ranges[min(column + bit, p.queries - 1)];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int key = row + row_of(half);
          if (key < seen.x || key >= seen.y) word[half] &= ~(uint64_t{1} << bit);
        }
      }
    }
  }

  uint64_t word_[kBlocks][2];
};

}  // namespace sash::cuda::hopper
