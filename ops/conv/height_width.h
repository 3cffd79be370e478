#pragma once

#include <cstdint>

namespace sash {

/// A number for each axis of an image: `{2, 1}`, or `2` for both.
struct HeightWidth {
  HeightWidth(int64_t both) : height(both), width(both) {}
  HeightWidth(int64_t rows, int64_t columns) : height(rows), width(columns) {}

  int64_t height;
  int64_t width;
};

}  // namespace sash
