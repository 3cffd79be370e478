#pragma once

#include "../../tensor/tensor.h"

namespace sash::detail {

struct Moments {
  Tensor var;  ///< sum of (x - mean)^2 / divisor, or its square root
  Tensor mean;
};

/// The moments of x (float32 or float64) over the axes where `kept` has extent 1. Not recorded.
Moments moments(const Tensor& x, const Shape& kept, double divisor, bool root = false);

}  // namespace sash::detail
