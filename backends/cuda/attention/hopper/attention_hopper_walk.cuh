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

/// The blocks that any of kLines lines lists within bounds, ascending, kBlocks a step. By all lanes
/// of a warp. Lines are blocks of queries (`by_query`) or keys. Where groups share a line, each
/// step is another one's.
template <class T, int kLines, bool by_query, int kBlocks = 1>
class Walk {
 public:
  /// The lines of `work` in head (b, h).
  __device__ Walk(const Problem<T>& p, const WorkAhead& work, int h)
      : p_(p),
        list_(by_query ? p.map.by_query : p.map.by_key),
        shared_(work.shared),
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
    head_ = within_bounds(checked(fetch(entry), entry));
    entry_ = entry + 1;
    ahead_ = fetch(entry_);
    block_ = __reduce_min_sync(~0u, head_.block);
  }

  __device__ bool more() const { return block_ != kNone; }

  /// The next block, or kNone. All groups wait for this, so there is no branch in it, and what it
  /// loads is first used a step later.
  __device__ int next() {
    const int block = block_;
    const bool mine = head_.block == block;
    const int tile = mine ? head_.tile : kAbsent;
    const int of_line = max(tile, __shfl_xor_sync(~0u, tile, 1));
    tile_ = shared_ && lane() / 2 != turn_ / kBlocks ? kAbsent : of_line;
    turn_ = turn_ + 1 == kLines * kBlocks ? 0 : turn_ + 1;
    const Entry following = within_bounds(checked(ahead_, entry_));
    head_.block = mine ? following.block : head_.block;
    head_.tile = mine ? following.tile : head_.tile;
    entry_ += mine;
    ahead_ = fetch(entry_);
    block_ = __reduce_min_sync(~0u, head_.block);
    return block;
  }

  /// On lanes 2 w: what that block is to group w.
  __device__ int tile() const { return tile_; }

 private:
  // Lanes 2 w and 2 w + 1 go through those that line w sees in part and those that it sees whole.
  struct Entry {
    int block, tile;
  };
  /// Entry number `entry`, or what follows the last. Nothing waits for it here.
  __device__ Entry fetch(int entry) const {
    const int at = min(entry, end_);
    return {list_.block[at], list_.tile[at]};
  }
  /// What was fetched as that number, as far as it exists.
  __device__ Entry checked(const Entry& fetched, int entry) const {
    if (entry >= end_) return {kNone, kAbsent};
    return {fetched.block, lane() % 2 == 0 ? fetched.tile : kWhole};
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
    const int block = min(by_query ? entry.block : line_, INT_MAX / kBlock - 1);
    const int key = block * kBlock, past = min(key + kBlock, p_.keys);
    int most_lo = most_lo_, least_hi = least_hi_;
    if (!by_query) {
      if (!p_.bounds.summary || entry.block == kNone) return entry;
      const int4 summary = p_.bounds.summary[summaries_ + entry.block];
      if (summary.x >= past || summary.w <= key) return {entry.block, kAbsent};
      most_lo = summary.y;
      least_hi = summary.z;
    }
    const bool cut = entry.tile != kAbsent && (most_lo > key || least_hi < past);
    return {entry.block, cut ? kCut + 1 + entry.tile : entry.tile};
  }

  const Problem<T>& p_;
  const kernels::BlockList& list_;
  const bool shared_;
  int turn_ = 0;       ///< whose the next block is, where groups share a line
  int block_;          ///< the next
  int summaries_ = 0;  ///< where those of this head start, where lines are those of keys
  int most_lo_ = INT_MIN, least_hi_ = INT_MAX;  ///< of the line, where it is one of queries
  int line_;
  int entry_, end_, tile_;
  Entry head_, ahead_;
};

/// What a copying warp says of the blocks in one stage of a ring.
template <int kLines, int kBlocks>
struct alignas(16) Step {
  int block[kBlocks];
  int h;     ///< the head of the queries
  int last;  ///< whether no step follows
  int tile[kLines][kBlocks];

  /// By all lanes of the copying warp: blocks, and on lanes 2 w what they are to group w. Who reads
  /// the step waits for `full`, which counts kLines arrivals for it.
  __device__ void note(const int (&number)[kBlocks], const int (&tile_of_lane)[kBlocks], int head,
                       bool is_last, Barrier& full) {
    if (lane() == 0) {
#pragma unroll
      for (int part = 0; part < kBlocks; ++part) block[part] = number[part];
      h = head;
      last = is_last;
    }
    const bool writes = lane() % 2 == 0 && lane() / 2 < kLines;
    if (writes) {
#pragma unroll
      for (int part = 0; part < kBlocks; ++part) tile[lane() / 2][part] = tile_of_lane[part];
    }
    full.arrive(writes);
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
  /// and `column`. Of a word, only the bits of the thread's own columns count. By all lanes.
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
      // Of the warp's 16 keys, those that queries `lane` and `lane + 32` see: in halves of a word.
      uint32_t keys = 0;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int2 seen = ranges[min(column + lane() + 32 * half, p.queries - 1)];
        const int first = row + row_of_warp();
        keys |= (static_cast<uint32_t>(bit_range(seen.x - first, seen.y - first)) & 0xFFFF)
                << 16 * half;
      }
      uint32_t bits[2][2] = {};  // of both rows, those of each half of the columns
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const int query = column_of(j / 2, j % 2);
        const uint32_t own = __shfl_sync(~0u, keys, query) >> lane() / 4;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          bits[half][0] |= (own >> 8 * half & 1) << query;
          bits[half][1] |= (own >> (16 + 8 * half) & 1) << query;
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
