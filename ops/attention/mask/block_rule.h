#pragma once

#include <span>
#include <vector>

#include "mask_part.h"

namespace sash {

inline int64_t blocks_of(int64_t tokens, int64_t block) {
  return tokens / block + (tokens % block != 0);
}

/// The key blocks that each row of queries sees.
class BlockRule final : public MaskRule {
 public:
  /// Blocks of `block` keys. Query i belongs to row (i + shift) / height.
  BlockRule(const MaskShape& shape, int64_t block, int64_t height, int64_t shift)
      : keys_(shape.keys),
        all_heads_(std::max<int64_t>(shape.heads, 1)),
        // Longer ones hold the same tokens and could overflow.
        block_(std::min(block, std::max<int64_t>({shape.queries, shape.keys, 1}))),
        height_(std::min(height, std::max<int64_t>({shape.queries, shape.keys, 1}))),
        shift_(shift) {
    start_.push_back(0);
  }
  /// Rows come by batch, then head, then row. Each of `heads` is that of a run of the call's heads.
  void extents(int64_t batches, int64_t heads, int64_t rows) {
    batches_ = batches;
    heads_ = heads;
    rows_ = rows;
  }
  /// Adds the next row; `blocks` ascend.
  void add_row(const std::vector<int64_t>& blocks) {
    seen_.insert(seen_.end(), blocks.begin(), blocks.end());
    start_.push_back(seen_.size());
  }

  void key_ranges(MaskHead head, IndexRange queries, KeyRanges& keys) const override {
    for (int64_t row = row_of(queries.first); row <= row_of(queries.past - 1); ++row) {
      for (const int64_t block : seen(head, row)) {
        append(keys, {block * block_, std::min((block + 1) * block_, keys_)});
      }
    }
  }
  Coverage coverage(MaskHead head, IndexRange queries, IndexRange keys) const override {
    bool any = false, all = true;
    for (int64_t row = row_of(queries.first); row <= row_of(queries.past - 1); ++row) {
      const std::span<const int64_t> blocks = seen(head, row);
      const int64_t first = keys.first / block_, last = (keys.past - 1) / block_;
      const auto from = std::lower_bound(blocks.begin(), blocks.end(), first);
      const auto to = std::upper_bound(from, blocks.end(), last);
      any = any || from != to;
      all = all && to - from == last - first + 1;
    }
    return coverage_of(any, all);
  }
  uint64_t row_bits(MaskHead head, int64_t query, int64_t key) const override {
    const std::span<const int64_t> blocks = seen(head, row_of(query));
    uint64_t bits = 0;
    for (auto block = std::lower_bound(blocks.begin(), blocks.end(), key / block_);
         block != blocks.end() && *block * block_ < key + 64; ++block) {
      bits |= bits_of({*block * block_, (*block + 1) * block_}, key);
    }
    return bits;
  }
  void read_rows(MaskHead head, IndexRange queries, int64_t key, uint64_t* rows) const override {
    for (int64_t query = queries.first; query < queries.past;) {
      const int64_t past = std::min((row_of(query) + 1) * height_ - shift_, queries.past);
      rows = std::fill_n(rows, past - query, row_bits(head, query, key));
      query = past;
    }
  }

 private:
  // Queries before the first key belong to block 0.
  int64_t row_of(int64_t query) const { return std::max<int64_t>(query + shift_, 0) / height_; }
  std::span<const int64_t> seen(MaskHead head, int64_t row) const {
    const int64_t b = batches_ == 1 ? 0 : head.batch, h = head.head * heads_ / all_heads_;
    const auto at = static_cast<size_t>((b * heads_ + h) * rows_ + row);
    return {seen_.data() + start_[at], start_[at + 1] - start_[at]};
  }

  int64_t keys_, all_heads_, block_, height_, shift_;
  int64_t batches_ = 1, heads_ = 1, rows_ = 0;
  std::vector<size_t> start_;
  std::vector<int64_t> seen_;
};

inline void check_block(int64_t block) {
  if (block >= 1) return;
  throw ValueError(kMask, "blocks of at least one token", std::to_string(block));
}

}  // namespace sash
