#include "mask_picture.h"

#include <algorithm>
#include <vector>

#include "../../../tensor/factories.h"
#include "bound_mask.h"

namespace sash {
namespace {

constexpr int64_t kMaxLength = 4096;  // a picture reads every pair

/// A grid over the scores, in cells of side x side pairs (fewer at the ends).
class Grid {
 public:
  Grid(const char* op, const AttentionMask& mask, int64_t queries, int64_t keys, int64_t width)
      : queries_(queries), keys_(keys) {
    for (const int64_t length : {queries, keys}) {
      if (length < 1 || length > kMaxLength) {
        throw ValueError(op, "lengths in [1, " + std::to_string(kMaxLength) + "]",
                         std::to_string(length));
      }
    }
    if (width < 1) throw ValueError(op, "a width of at least 1", std::to_string(width));
    const int64_t longest = std::max(queries, keys);
    side_ = longest / width + (longest % width != 0);
    visible_.resize(static_cast<size_t>(rows() * columns()));
    const MaskShape shape = shape_of(mask.term(), queries, keys);
    if (shape.batch == 0 || shape.heads == 0) {
      throw ShapeError(op, "a mask of at least one batch and head",
                       to_string(Shape{shape.batch, shape.heads, queries, keys}));
    }
    const BoundMask bound(mask.term(), shape);
    for (int64_t i = 0; i < queries; ++i) {
      int64_t* row = visible_.data() + i / side_ * columns();
      for (int64_t key = 0; key < keys; key += 64) {
        const uint64_t bits = bound.row_bits({0, 0}, i, key);
        const int64_t past = std::min<int64_t>(64, keys - key);
        for (int64_t n = 0; n < past; ++n) row[(key + n) / side_] += bits >> n & 1;
      }
    }
  }

  int64_t rows() const { return (queries_ + side_ - 1) / side_; }
  int64_t columns() const { return (keys_ + side_ - 1) / side_; }
  int64_t visible(int64_t row, int64_t column) const {
    return visible_[static_cast<size_t>(row * columns() + column)];
  }
  int64_t pairs(int64_t row, int64_t column) const {
    return std::min(side_, queries_ - row * side_) * std::min(side_, keys_ - column * side_);
  }

 private:
  int64_t queries_, keys_, side_ = 1;
  std::vector<int64_t> visible_;  ///< pairs of each cell
};

char character(int64_t visible, int64_t pairs) {
  if (visible == 0) return ' ';
  return visible == pairs ? '#' : ".:+"[3 * visible / pairs];
}

}  // namespace

std::string mask_picture(const AttentionMask& mask, int64_t queries, int64_t keys, int64_t width) {
  const Grid grid("mask_picture", mask, queries, keys, width);
  std::string text;
  for (int64_t row = 0; row < grid.rows(); ++row) {
    for (int64_t column = 0; column < grid.columns(); ++column) {
      text += character(grid.visible(row, column), grid.pairs(row, column));
    }
    text += '\n';
  }
  return text;
}

Tensor mask_shares(const AttentionMask& mask, int64_t queries, int64_t keys, int64_t width) {
  const Grid grid("mask_shares", mask, queries, keys, width);
  Tensor shares = zeros({grid.rows(), grid.columns()}, {.dtype = DType::float64, .device = kCPU});
  double* share = shares.data<double>();
  for (int64_t row = 0; row < grid.rows(); ++row) {
    for (int64_t column = 0; column < grid.columns(); ++column) {
      *share++ = static_cast<double>(grid.visible(row, column)) /
                 static_cast<double>(grid.pairs(row, column));
    }
  }
  return shares;
}

}  // namespace sash
