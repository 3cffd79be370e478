#include <algorithm>

#include "../../checks.h"
#include "../../index/index_checks.h"
#include "block_rule.h"

/// Blocks that data selects, as a part of a mask.
namespace sash {
namespace {

class Selected final : public NumberedPart {
 public:
  Selected(const Tensor& index, int64_t block, int64_t queries_per_row)
      : NumberedPart("selected:" + std::to_string(block) + "," + std::to_string(queries_per_row),
                     2),
        selection_{index, block, queries_per_row} {
    check_block(block);
    if (queries_per_row < 1) {
      throw ValueError(kMask, "at least one query per row", std::to_string(queries_per_row));
    }
    check_defined(kMask, index, "an index of blocks");
    check_dtype(kMask, index, DType::int32, "an index of blocks");
    check_rank(kMask, index, 4);
  }
  SmallVector<Tensor, 2> tensors() const override { return {selection_.index}; }
  MaskExtents extents() const override { return {index().size(0) != 1, index().size(1) != 1}; }
  void fit(MaskShape& shape) const override { fit_to(shape, index().size(0), index().size(1)); }
  const BlockSelection* selection() const override { return &selection_; }

  void check_meaning(const MaskShape& shape) const override {
    const int64_t batches = index().size(0), heads = index().size(1);
    const int64_t rows = blocks_of(shape.queries, selection_.queries_per_row);
    const bool fits = (batches == 1 || batches == shape.batch) && heads > 0 &&
                      shape.heads % heads == 0 && index().size(2) == rows;
    if (fits) return;
    throw ShapeError(kMask,
                     "an index [" + std::to_string(shape.batch) + " or 1, heads that divide " +
                         std::to_string(shape.heads) + ", " + std::to_string(rows) + ", k]",
                     sash::to_string(index().shape()));
  }

  std::unique_ptr<MaskRule> bind(const MaskShape& shape) const override {
    check_meaning(shape);
    const int64_t count = blocks_of(shape.keys, selection_.block), width = index().size(3);
    auto rule = std::make_unique<BlockRule>(shape, selection_.block, selection_.queries_per_row, 0);
    rule->extents(index().size(0), index().size(1), index().size(2));
    const std::vector<int32_t> all = index().to_vector<int32_t>();
    std::vector<int64_t> blocks;
    for (size_t at = 0; at < all.size();) {
      blocks.clear();
      for (const size_t past = at + static_cast<size_t>(width); at < past; ++at) {
        if (all[at] >= 0 && all[at] < count) blocks.push_back(all[at]);
        if (all[at] >= -1 && all[at] < count) continue;
        throw IndexError(kMask, "blocks in [-1, " + std::to_string(count) + ")",
                         std::to_string(all[at]) + " at " +
                             position_of(static_cast<int64_t>(at), index().shape()));
      }
      std::sort(blocks.begin(), blocks.end());
      blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
      rule->add_row(blocks);
    }
    // An index of no columns has no elements, but rows.
    const int64_t rows = index().size(0) * index().size(1) * index().size(2);
    for (int64_t row = 0; width == 0 && row < rows; ++row) rule->add_row({});
    return rule;
  }

 private:
  const Tensor& index() const { return selection_.index; }

  BlockSelection selection_;
};

}  // namespace

AttentionMask AttentionMask::selected(const Tensor& index, int64_t block, int64_t queries_per_row) {
  return AttentionMask(std::make_shared<Selected>(index, block, queries_per_row));
}

}  // namespace sash
