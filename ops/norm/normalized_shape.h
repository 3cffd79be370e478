#pragma once

#include "../checks.h"

namespace sash {

/// Throws unless x is floating, its last axes are `normalized`, of which there is one, and eps is
/// not negative.
inline void check_normalized(const char* op, const Tensor& x, const Shape& normalized, double eps) {
  check_floating(op, x);
  if (normalized.empty()) throw ShapeError(op, "a normalized shape with an axis", "[]");
  check_not_negative(op, "eps", eps);
  const int first = x.rank() - normalized.rank();
  bool fits = first >= 0;
  for (int i = 0; fits && i < normalized.rank(); ++i) {
    fits = x.shape()[first + i] == normalized[i];
  }
  if (!fits) {
    throw ShapeError(op, "an input whose last axes are " + to_string(normalized),
                     to_string(x.shape()));
  }
}

/// Throws unless branch and residual [..., D] are floating, of one shape, dtype and device.
inline void check_branch(const char* op, const Tensor& branch, const Tensor& residual) {
  check_floating(op, branch);
  check_min_rank(op, branch, 1);
  check_compatible(op, branch, residual);
  check_shape(op, residual, branch.shape());
}

}  // namespace sash
