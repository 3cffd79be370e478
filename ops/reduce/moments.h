#pragma once

#include "../../tensor/tensor.h"

namespace sash::detail {

struct Moments {
  Tensor var;  ///< sum of (x - mean)^2 / divisor, or the root of that
  Tensor mean;
};

/// Of x (float32 or float64) over the axes where `kept` has extent 1; not recorded.
Moments moments(const Tensor& x, const Shape& kept, double divisor, bool root = false);

}  // namespace sash::detail
