#pragma once

#include <cstdint>
#include <string>

#include "../core/error.h"
#include "../tensor/tensor.h"

/// Argument checks that modules and optimizers share.
namespace sash::nn {

using sash::to_text;

/// `ValueError` unless `value` is positive; `what` names the argument.
inline void check_positive(const std::string& op, const std::string& what, int64_t value) {
  if (value <= 0) throw ValueError(op, "a positive " + what, std::to_string(value));
}

/// `ValueError` unless `p` lies in [0, 1].
inline void check_probability(const std::string& op, const std::string& what, double p) {
  if (!(p >= 0 && p <= 1)) throw ValueError(op, what + " in [0, 1]", to_text(p));
}

/// `ShapeError` unless `x` has an axis and its last extent is `extent`.
inline void check_last_extent(const std::string& op, const Tensor& x, int64_t extent) {
  if (!x.defined()) throw ValueError(op, "a tensor", "an undefined tensor");
  if (x.rank() > 0 && x.shape().back() == extent) return;
  throw ShapeError(op, "a last extent of " + std::to_string(extent), to_string(x.shape()));
}

}  // namespace sash::nn
