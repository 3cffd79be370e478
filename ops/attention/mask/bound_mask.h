#pragma once

#include <memory>
#include <span>
#include <vector>

#include "mask_part.h"

namespace sash {

/// An expression whose parts are bound to lengths. It has the functions of `MaskRule`.
class BoundMask {
 public:
  BoundMask(const MaskTerm& term, const MaskShape& shape);

  /// Ascending ranges that hold every key the queries see; may be conservative.
  KeyRanges key_ranges(MaskHead head, IndexRange queries) const;
  Coverage coverage(MaskHead head, IndexRange queries, IndexRange keys) const;
  uint64_t row_bits(MaskHead head, int64_t query, int64_t key) const;

  /// Writes to `rows` the bits of each query for at most 64 keys. Returns how many are set.
  int64_t read_tile(MaskHead head, IndexRange queries, IndexRange keys,
                    std::span<uint64_t> rows) const;

  /// `MaskRule::tile_number`, if the expression is one part.
  std::optional<uint64_t> tile_number(IndexRange queries, IndexRange keys) const {
    if (steps_.size() > 1) return std::nullopt;
    return steps_[0].rule->tile_number(queries, keys);
  }

  /// Calls f(blocks, coverage) for the visible blocks of 64 among the keys [0, `keys`), ascending.
  /// A run of fully visible blocks is one call; each partly visible block is one call.
  template <class F>
  void for_each_run(MaskHead head, IndexRange queries, int64_t keys, F&& f) const {
    int64_t next = 0;
    for (const IndexRange range : key_ranges(head, queries)) {
      const IndexRange blocks{std::max(next, range.first / kBlock),
                              (range.past + kBlock - 1) / kBlock};
      if (blocks.empty()) continue;
      split_runs(head, queries, keys, blocks, f);
      next = blocks.past;
    }
  }

 private:
  // Postfix order: an operator takes the last two results.
  struct Step {
    MaskTerm::Kind kind;
    std::unique_ptr<MaskRule> rule;  // null for an operator
  };
  void add(const MaskTerm& term, const MaskShape& shape);

  static constexpr int64_t kBlock = kernels::kBlockKeys;

  template <class F>
  void split_runs(MaskHead head, IndexRange queries, int64_t keys, IndexRange blocks, F& f) const {
    const Coverage found = coverage(
        head, queries, intersect({blocks.first * kBlock, blocks.past * kBlock}, {0, keys}));
    if (found == Coverage::empty) return;
    if (found == Coverage::full || blocks.size() == 1) return f(blocks, found);
    const int64_t middle = blocks.first + blocks.size() / 2;
    split_runs(head, queries, keys, {blocks.first, middle}, f);
    split_runs(head, queries, keys, {middle, blocks.past}, f);
  }

  std::vector<Step> steps_;
};

}  // namespace sash
