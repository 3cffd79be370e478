#pragma once

#include "fragments.cuh"

/// The order of the steps of the mma and the simple kernels. A block of threads processes the
/// queries (or the keys) of one block of the map, or of an equal part of the block. It reads the
/// other axis in steps of kStep rows: 64 rows, or an equal part of 64.
namespace sash::cuda::fragments {

inline constexpr int kBlockKeys = static_cast<int>(kernels::kBlockKeys);

/// Rows of the map's query blocks.
inline constexpr int kBlockQueries = 64;

/// A step: the kStep rows from row `first` of the sequence on, which is row `part` of block
/// `block`. `first` is -1 past the last step.
struct Step {
  int first, head, block, part;
  int tile;      ///< the block's bit tile, -1 if it is full
  bool bounded;  ///< whether bounds hide a part of the block

  /// Whether some pairs of the block are hidden.
  __device__ bool masked() const { return tile >= 0 || bounded; }
};

/// How a `StepIterator` stores the block row that it visits: as a number or as an address. It
/// depends on the kernel which of the two spills fewer registers.
enum class RowBy { number, address };

/// Visits the steps of one block row in each of the heads [head, end_head). General kernels skip
/// blocks that bounds hide. All lanes of a warp call each function together.
template <class T, bool by_query, int kStep, bool plain, RowBy kRowBy = RowBy::number>
class StepIterator {
 public:
  __device__ StepIterator(const AttentionDims<T>& p, int b, int head, int end_head, int row)
      : p_(p),
        list_(by_query ? p.map.by_query : p.map.by_key),
        b_(b),
        row_(row),
        end_head_(end_head) {
    at_.head = head;
    at_.part = kBlock - kStep;
    open_row();
  }

  __device__ Step next() {
    at_.part += kStep;
    if (at_.part < kBlock) {
      at_.first += kStep;
      return at_;
    }
    while (!next_block()) {
      if (++at_.head >= end_head_) {
        at_.first = -1;
        return at_;
      }
      open_row();
    }
    at_.part = 0;
    at_.first = at_.block * kBlock;
    return at_;
  }

 private:
  /// Both axes have blocks of 64.
  static constexpr int kBlock = kBlockKeys;
  static_assert(kBlockQueries == kBlockKeys);

  __device__ void open_row() {
    const int64_t blocks = by_query ? p_.map.query_blocks : p_.map.key_blocks;
    const int64_t row = p_.first_row(b_, at_.head, blocks) + row_;
    if constexpr (kRowBy == RowBy::number) {
      unopened_ = static_cast<int>(row);
      open_run(list_.rows[unopened_].partial);
    } else {
      unopened_ = list_.rows + row;
      open_run(unopened_->partial);
    }
  }
  __device__ void open_run(const kernels::BlockRun& run) {
    entry_ = run.first;
    end_ = run.first + run.count;
  }

  /// Continues with the run of full blocks after the run of partial blocks. Returns false after the
  /// run of full blocks.
  __device__ bool next_run() {
    if constexpr (kRowBy == RowBy::number) {
      if (unopened_ < 0) return false;
      open_run(list_.rows[unopened_].full);
      unopened_ = -1;
    } else {
      if (!unopened_) return false;
      open_run(unopened_->full);
      unopened_ = nullptr;
    }
    return true;
  }

  __device__ void take_entry(bool bounded) {
    at_.block = list_.block_at(entry_);
    at_.tile = list_.tile_at(entry_);
    at_.bounded = bounded;
    ++entry_;
  }

  /// Finds the next block of the row. Returns false if there is none.
  __device__ bool next_block() {
    if constexpr (!plain) {
      if (p_.bounds.summary) {
        do {
          if (next_block_within_bounds()) return true;
        } while (next_run());
        return false;
      }
    }
    while (entry_ >= end_) {
      if (!next_run()) return false;
    }
    take_entry(false);
    return true;
  }

  /// Finds the next block of the run that bounds do not hide. The lanes test 32 entries at once.
  __device__ bool next_block_within_bounds() {
    const int4* summary = p_.bounds.summary + p_.bounds.head(b_, at_.head) * p_.map.query_blocks;
    for (; entry_ < end_; entry_ += kWarp) {
      const int mine = entry_ + lane();
      const int block = mine < end_ ? list_.block_at(mine) : 0;
      const int4 s = summary[by_query ? row_ : block];
      const int first_key = (by_query ? block : row_) * kBlockKeys;
      const unsigned hits =
          __ballot_sync(~0u, mine < end_ && s.x < first_key + kBlockKeys && s.w > first_key);
      const unsigned cut = __ballot_sync(~0u, s.y > first_key || s.z < first_key + kBlockKeys);
      if (hits == 0) continue;
      const int hit = __ffs(static_cast<int>(hits)) - 1;
      entry_ += hit;
      take_entry(cut >> hit & 1);
      return true;
    }
    return false;
  }

  const AttentionDims<T>& p_;
  const kernels::BlockList& list_;
  int b_, row_, end_head_;
  /// The block row whose run of full blocks is still to come; -1 or null if there is none.
  std::conditional_t<kRowBy == RowBy::number, int, const kernels::BlockRow*> unopened_;
  int entry_, end_;
  Step at_;
};

}  // namespace sash::cuda::fragments
