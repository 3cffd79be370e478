#pragma once

#include <cstdint>
#include <string>

#include "../ops/checks.h"

/// Argument checks of modules, in addition to those of the ops.
namespace sash::nn {

/// `ValueError` unless `value` is positive; `what` names the argument.
inline void check_positive(const std::string& op, const std::string& what, int64_t value) {
  if (value <= 0) throw ValueError(op, "a positive " + what, std::to_string(value));
}

/// `ShapeError` unless `x` has an axis and its last extent is `extent`.
inline void check_last_extent(const std::string& op, const Tensor& x, int64_t extent) {
  if (!x.defined()) throw ValueError(op, "a tensor", "an undefined tensor");
  if (x.rank() > 0 && x.shape().back() == extent) return;
  throw ShapeError(op, "a last extent of " + std::to_string(extent), to_string(x.shape()));
}

}  // namespace sash::nn
