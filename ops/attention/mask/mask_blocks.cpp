#include "../../../core/philox.h"
#include "../../checks.h"
#include "block_rule.h"

/// Parts of blocks: block-sparse layouts, BigBird and random blocks.
namespace sash {
namespace {

// `count` distinct numbers below `limit`, ascending (R. Floyd's method). Number n is draw n of the
// random stream `row`.
std::vector<int64_t> choose(int64_t count, int64_t limit, uint64_t seed, int64_t row) {
  std::vector<int64_t> chosen;
  if (count >= limit) {
    for (int64_t n = 0; n < limit; ++n) chosen.push_back(n);
    return chosen;
  }
  for (int64_t n = 0; n < count; ++n) {
    const auto top = static_cast<uint64_t>(limit - count + n + 1);
    const auto counter = (static_cast<uint64_t>(row) << 24) + static_cast<uint64_t>(n);
    const PhiloxBlock draw = philox(seed, counter);
    const uint64_t wide = (uint64_t{draw.lane[0]} << 32) | draw.lane[1];
    auto pick = static_cast<int64_t>(wide % top);
    if (std::find(chosen.begin(), chosen.end(), pick) != chosen.end()) {
      pick = static_cast<int64_t>(top) - 1;
    }
    chosen.push_back(pick);
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

class BlockSparse final : public NumberedPart {
 public:
  BlockSparse(const Tensor& layout, int64_t block)
      : NumberedPart("block_sparse:" + std::to_string(block), 4), layout_(layout), block_(block) {
    check_block(block);
    check_defined(kMask, layout_, "a layout");
    check_dtype(kMask, layout_, DType::boolean);
    if (layout_.rank() < 2 || layout_.rank() > 4) {
      throw ShapeError(kMask, "a layout [n, m], [H, n, m] or [B, H, n, m]",
                       sash::to_string(layout_.shape()));
    }
  }
  SmallVector<Tensor, 2> tensors() const override { return {layout_}; }

  std::unique_ptr<MaskRule> bind(const MaskShape& shape) const override {
    const int64_t rows = blocks_of(shape.queries, block_), columns = blocks_of(shape.keys, block_);
    if (extent(2) != rows || extent(3) != columns || !fits_heads(shape)) {
      throw ShapeError(kMask,
                       "a layout of " + std::to_string(rows) + " x " + std::to_string(columns) +
                           " blocks of " + std::to_string(block_) + " tokens for " +
                           std::to_string(shape.queries) + " queries and " +
                           std::to_string(shape.keys) + " keys",
                       sash::to_string(layout_.shape()));
    }
    auto rule = std::make_unique<BlockRule>(shape, block_, block_, 0);
    rule->extents(extent(0), extent(1), rows);
    const std::vector<bool> cells = layout_.to_vector<bool>();
    std::vector<int64_t> blocks;
    for (int64_t row = 0; row < extent(0) * extent(1) * rows; ++row) {
      blocks.clear();
      for (int64_t n = 0; n < columns; ++n) {
        if (cells[static_cast<size_t>(row * columns + n)]) blocks.push_back(n);
      }
      rule->add_row(blocks);
    }
    return rule;
  }

 private:
  Tensor layout_;
  int64_t block_;
};

class BigBird final : public MaskPart {
 public:
  explicit BigBird(const BigBirdOptions& options) : options_(options) {
    check_block(options.block);
    if (options.window < 0 || (options.window > 0 && options.window % 2 == 0)) {
      throw ValueError(kMask, "an odd number of blocks in the window, or 0",
                       std::to_string(options.window));
    }
    for (const auto& [what, count] :
         {std::pair{"global", options.global}, std::pair{"random", options.random}}) {
      if (count >= 0) continue;
      throw ValueError(kMask, "a number of " + std::string(what) + " blocks of at least 0",
                       std::to_string(count));
    }
  }
  std::string text() const override {
    const auto [block, window, global, random, bits] = options_;
    const auto seed = static_cast<int64_t>(bits);  // as `parse` reads numbers
    if (window == 0 && global == 0) {
      return "random_blocks:" + std::to_string(random) + "," + std::to_string(seed) + "," +
             std::to_string(block);
    }
    return "bigbird:" + std::to_string(block) + "," + std::to_string(window) + "," +
           std::to_string(global) + "," + std::to_string(random) + "," + std::to_string(seed);
  }

  std::unique_ptr<MaskRule> bind(const MaskShape& shape) const override {
    const int64_t columns = blocks_of(shape.keys, options_.block);
    auto rule = std::make_unique<BlockRule>(shape, options_.block, options_.block, shape.offset());
    rule->extents(1, 1, columns);
    for (int64_t row = 0; row < columns; ++row) rule->add_row(key_blocks_of(row, columns));
    return rule;
  }

 private:
  std::vector<int64_t> key_blocks_of(int64_t row, int64_t columns) const {
    std::vector<int64_t> blocks = choose(options_.random, columns, options_.seed, row);
    const auto add = [&](int64_t first, int64_t past) {
      for (int64_t n = std::max<int64_t>(first, 0); n < std::min(past, columns); ++n) {
        blocks.push_back(n);
      }
    };
    if (row < options_.global) {
      add(0, columns);
    } else {
      add(0, options_.global);
      if (options_.window > 0) add(row - options_.window / 2, row + options_.window / 2 + 1);
    }
    std::sort(blocks.begin(), blocks.end());
    blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
    return blocks;
  }

  BigBirdOptions options_;
};

}  // namespace

AttentionMask AttentionMask::block_sparse(const Tensor& layout, int64_t block) {
  return AttentionMask(std::make_shared<BlockSparse>(layout, block));
}
AttentionMask AttentionMask::random_blocks(int64_t n, uint64_t seed, int64_t block) {
  return bigbird({.block = block, .window = 0, .global = 0, .random = n, .seed = seed});
}
AttentionMask AttentionMask::bigbird(const BigBirdOptions& options) {
  return AttentionMask(std::make_shared<BigBird>(options));
}

}  // namespace sash
