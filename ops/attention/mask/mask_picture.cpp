#include "mask_picture.h"

#include <algorithm>
#include <vector>

#include "../../../tensor/io/replacement_file.h"

namespace sash {
namespace {

constexpr int64_t kMaxLength = 4096;  // a picture reads every pair
constexpr int64_t kSvgCells = 128;    // along the longer side
constexpr int64_t kSvgPixels = 4;     // of a cell

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
    const Tensor dense = mask.to_dense(queries, keys).contiguous();
    if (dense.numel() == 0) {
      throw ShapeError(op, "a mask of at least one batch and head", to_string(dense.shape()));
    }
    const bool* visible = dense.data<const bool>();
    for (int64_t i = 0; i < queries; ++i) {
      int64_t* row = visible_.data() + i / side_ * columns();
      for (int64_t j = 0; j < keys; ++j) row[j / side_] += visible[i * keys + j];
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

std::string escaped(const std::string& text) {
  std::string xml;
  for (const char c : text) {
    if (c == '&') {
      xml += "&amp;";
    } else if (c == '<') {
      xml += "&lt;";
    } else {
      xml += c;
    }
  }
  return xml;
}

/// Neighbouring cells of one grey share a rectangle.
std::string svg_row(const Grid& grid, int64_t row) {
  const auto grey_of = [&](int64_t column) {
    const int64_t pairs = grid.pairs(row, column);
    return 255 - (255 * grid.visible(row, column) + pairs / 2) / pairs;
  };
  std::string text;
  for (int64_t start = 0, end = 0; start < grid.columns(); start = end) {
    const int64_t grey = grey_of(start);
    while (end < grid.columns() && grey_of(end) == grey) ++end;
    if (grey == 255) continue;
    const std::string level = std::to_string(grey);
    text += "<rect x=\"" + std::to_string(start) + "\" y=\"" + std::to_string(row) + "\" width=\"" +
            std::to_string(end - start) + "\" height=\"1\" fill=\"rgb(" + level + "," + level +
            "," + level + ")\"/>\n";
  }
  return text;
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

void save_mask_svg(const std::string& path, const AttentionMask& mask, int64_t queries,
                   int64_t keys) {
  constexpr const char* op = "save_mask_svg";
  const Grid grid(op, mask, queries, keys, kSvgCells);
  const std::string columns = std::to_string(grid.columns()), rows = std::to_string(grid.rows());
  std::string text = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" +
                     std::to_string(kSvgPixels * grid.columns()) + "\" height=\"" +
                     std::to_string(kSvgPixels * grid.rows()) + "\" viewBox=\"0 0 " + columns +
                     " " + rows + "\" shape-rendering=\"crispEdges\">\n<title>" +
                     escaped(mask.to_string()) + ": " + std::to_string(queries) +
                     " queries down, " + std::to_string(keys) +
                     " keys across</title>\n<rect width=\"" + columns + "\" height=\"" + rows +
                     "\" fill=\"white\"/>\n";
  for (int64_t row = 0; row < grid.rows(); ++row) text += svg_row(grid, row);
  text += "</svg>\n";
  ReplacementFile file(op, path);
  file.write(text.data(), text.size());
  file.commit();
}

}  // namespace sash
