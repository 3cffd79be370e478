#pragma once

#include <climits>

#include "scheduler.cuh"

/// The blocks of a call's map: one warp lists them and publishes them to the other warps.
namespace sash::cuda::hopper {

/// The tile of a block in a block row: the number of the bit tile, kFull or kEmpty. If bounds hide
/// a part of the block, kBounded + 1 is added.
inline constexpr int kFull = -1, kEmpty = -2, kBounded = 1 << 30;
/// The block number after the last block.
inline constexpr int kNoBlock = INT_MAX;

/// Visits each block once that a block row of a work tile lists and that bounds do not hide, in
/// ascending or in descending order (`backwards`). All lanes of a warp call each function together.
/// Rows are query blocks (`by_query`) or key blocks. Groups that share a row take turns, and a turn
/// is one step of kBlocks blocks.
template <class T, int kBlockRows, bool by_query, int kBlocks, bool bounded, bool backwards>
class BlockIterator {
  static_assert(!(bounded && backwards));

 public:
  /// Visits the blocks of query head h. If rows are key blocks, only those in range `split` of
  /// `splits` equal ranges of query blocks.
  __device__ BlockIterator(const AttentionDims<T>& p, const WorkTile& work, int h, int split = 0,
                           int splits = 1)
      : p_(p),
        list_(by_query ? p.map.by_query : p.map.by_key),
        shared_(work.shared),
        row_(__shfl_sync(~0u, work.block_row, lane() / 2)) {
    const int b = work.b;
    static_assert(2 * kBlockRows <= 32);
    const auto blocks = static_cast<int>(by_query ? p.map.query_blocks : p.map.key_blocks);
    int entry = 0, end = 0;
    if (lane() / 2 < kBlockRows && row_ < blocks) {
      const int64_t at = p.first_row(b, h, blocks) + row_;
      const kernels::BlockRow& runs = list_.rows[at];
      const kernels::BlockRun& run = lane() % 2 == 0 ? runs.partial : runs.full;
      entry = run.first;
      end = run.first + run.count;
      if (bounded && p.bounds.ranges) clip_to_bounds(p.bounds.head(b, h), entry, end);
      if (bounded && !by_query && splits > 1) {
        const auto queries = static_cast<int>(p.map.query_blocks);
        clip(split * queries / splits, (split + 1) * queries / splits, entry, end);
      }
    }
    end_ = backwards ? entry - 1 : end;
    entry_ = backwards ? end - 1 : entry;
    current_ = apply_bounds(checked(fetch(entry_), entry_));
    entry_ += kAhead;
    prefetched_ = fetch(entry_);
    block_ = __reduce_min_sync(~0u, current_.block);
  }

  __device__ bool more() const { return block_ != kNoBlock; }

  /// Returns the next block, or kNoBlock. All groups wait for this function, so it has no
  /// branch, and uses loaded values only in the next call.
  __device__ int next() {
    const int block = block_;
    const bool mine = current_.block == block;
    const int tile = mine ? current_.tile : kEmpty;
    const int of_row = max(tile, __shfl_xor_sync(~0u, tile, 1));
    tile_ = shared_ && lane() / 2 != turn_ / kBlocks ? kEmpty : of_row;
    turn_ = turn_ + 1 == kBlockRows * kBlocks ? 0 : turn_ + 1;
    const Entry following = apply_bounds(checked(prefetched_, entry_));
    current_.block = mine ? following.block : current_.block;
    current_.tile = mine ? following.tile : current_.tile;
    entry_ += mine ? kAhead : 0;
    prefetched_ = fetch(entry_);
    block_ = __reduce_min_sync(~0u, current_.block);
    return backwards && block != kNoBlock ? ~block : block;
  }

  /// On lane 2 w: the tile, for group w, of the block that `next` returned.
  __device__ int tile() const { return tile_; }

 private:
  static constexpr int kAhead = backwards ? -1 : 1;

  // Lane 2 w visits the partial blocks of row w, lane 2 w + 1 the full blocks. If `backwards`,
  // block numbers are complemented, so that the next block has the smallest number in both
  // directions.
  struct Entry {
    int block, tile;
  };
  /// Starts to load an entry. Past the end it loads some entry: the list has a padding entry.
  __device__ Entry fetch(int entry) const {
    const int at = backwards ? entry : min(entry, end_);
    return {list_.block_at(at), list_.tile_at(at)};
  }
  /// The fetched entry, or an empty entry past the end.
  __device__ Entry checked(const Entry& fetched, int entry) const {
    if (backwards ? entry <= end_ : entry >= end_) return {kNoBlock, kEmpty};
    return {backwards ? ~fetched.block : fetched.block, fetched.tile};
  }

  /// Drops entries at both ends whose blocks the bounds hide.
  __device__ void clip_to_bounds(int64_t head, int& entry, int& end) {
    int first, past;
    if constexpr (by_query) {
      const int4 summary = p_.bounds.summary[head * p_.map.query_blocks + row_];
      first = summary.x / kBlock;
      past = (summary.w + kBlock - 1) / kBlock;
      max_lo_ = summary.y;
      min_hi_ = summary.z;
    } else {
      summaries_ = static_cast<int>(head * p_.map.query_blocks);
      const int2 range = p_.bounds.seen_by[head * p_.map.key_blocks + row_];
      first = range.x;
      past = -range.y;
    }
    clip(first, past, entry, end);
  }
  /// Drops entries whose blocks are not in [first, past).
  __device__ void clip(int first, int past, int& entry, int& end) const {
    entry = lower_bound(first, entry, end);
    end = max(entry, lower_bound(past, entry, end));
  }
  /// The first of the entries [low, high) whose block is at least `block`. Blocks ascend, so the
  /// entry is at most `block` - (first block) entries after `low`. The search starts there.
  __device__ int lower_bound(int block, int low, int high) const {
    if (low >= high) return low;
    high = low + min(high - low, max(0, block - list_.block_at(low)));
    for (int probe = high - 1; low < high; probe = low + (high - low) / 2) {
      if (list_.block_at(probe) < block) {
        low = probe + 1;
      } else {
        high = probe;
      }
    }
    return low;
  }

  /// Marks an entry that bounds hide, or of which they hide a part.
  __device__ Entry apply_bounds(const Entry& entry) const {
    if constexpr (!bounded) return entry;
    const int block = min(by_query ? entry.block : row_, INT_MAX / kBlock - 1);
    const int key = block * kBlock, past = min(key + kBlock, p_.keys);
    int max_lo = max_lo_, min_hi = min_hi_;
    if (!by_query) {
      if (!p_.bounds.summary || entry.block == kNoBlock) return entry;
      const int4 summary = p_.bounds.summary[summaries_ + entry.block];
      if (summary.x >= past || summary.w <= key) return {entry.block, kEmpty};
      max_lo = summary.y;
      min_hi = summary.z;
    }
    const bool cut = entry.tile != kEmpty && (max_lo > key || min_hi < past);
    return {entry.block, cut ? kBounded + 1 + entry.tile : entry.tile};
  }

  const AttentionDims<T>& p_;
  const kernels::BlockList& list_;
  const bool shared_;
  int turn_ = 0;                             ///< blocks since group 0's turn began
  int block_;                                ///< the next block
  int summaries_ = 0;                        ///< the head's first summary, if rows are key blocks
  int max_lo_ = INT_MIN, min_hi_ = INT_MAX;  ///< of the row, if it is a query block
  int row_;
  int entry_, end_, tile_;
  Entry current_, prefetched_;
};

/// The list entries of one step, in shared memory.
template <int kBlockRows, int kBlocks>
struct alignas(16) Step {
  int block[kBlocks];
  int b;     ///< < 0 after the last step
  int h;     ///< the query head
  int last;  ///< whether the step is the last of its work tile
  int tile[kBlockRows][kBlocks];

  /// Publishes the blocks, and their tiles for group w, which lane 2 w passes. All lanes call this.
  /// Readers wait for `full`, which counts kBlockRows arrivals.
  __device__ void publish(const int (&number)[kBlocks], const int (&tile_of_lane)[kBlocks],
                          int batch, int head, bool is_last, Barrier& full) {
    if (lane() == 0) {
#pragma unroll
      for (int part = 0; part < kBlocks; ++part) block[part] = number[part];
      b = batch;
      h = head;
      last = is_last;
    }
    const bool writes = lane() % 2 == 0 && lane() / 2 < kBlockRows;
    if (writes) {
#pragma unroll
      for (int part = 0; part < kBlocks; ++part) tile[lane() / 2][part] = tile_of_lane[part];
    }
    full.arrive(writes);
  }
  /// Publishes that there are no further steps.
  __device__ void publish_end(Barrier& full) {
    if (lane() == 0) b = -1;
    full.arrive(lane() < kBlockRows);
  }
  __device__ bool is_end() const { return b < 0; }
};

/// The head of a step's scores, and their first row and column.
struct StepPosition {
  int b, h, row, column;

  StepPosition() = default;
  template <int kBlockRows>
  __device__ StepPosition(const SharedWorkTile<kBlockRows>& work, const Step<kBlockRows, 1>& step,
                          int number)
      : b(work.b),
        h(step.h),
        row(work.block_row[number] * kBlock),
        column(step.block[0] * kBlock) {}
};

}  // namespace sash::cuda::hopper
