#pragma once

#include <array>

#include "../checks.h"

namespace sash::detail {

/// Two shapes of a result: with extent 1 on the reduced axes, and without these axes.
struct ReducedShape {
  Shape kept;
  Shape dropped;
  int64_t count = 1;  ///< elements per result
};

/// The shapes for reducing x over `axes`. An empty list means all axes.
inline ReducedShape reduced_shape(const char* op, const Tensor& x, const Dims& axes) {
  check_defined(op, x);
  std::array<bool, kMaxRank> reduced{};
  for (const int64_t axis : axes) {
    bool& seen = reduced[static_cast<size_t>(normalize_axis(axis, x.rank(), op))];
    if (seen) throw ValueError(op, "each axis once", to_string(axes));
    seen = true;
  }
  ReducedShape result{x.shape(), {}, 1};
  for (int i = 0; i < x.rank(); ++i) {
    if (axes.empty() || reduced[static_cast<size_t>(i)]) {
      result.count *= x.shape()[i];
      result.kept[i] = 1;
    } else {
      result.dropped.push_back(x.shape()[i]);
    }
  }
  return result;
}

/// Drops the reduced axes unless `keepdim`.
inline Tensor finished(const Tensor& y, const ReducedShape& shape, bool keepdim) {
  return keepdim ? y : y.view(shape.dropped);
}

}  // namespace sash::detail
