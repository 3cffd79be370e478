#pragma once

#include "../../tensor/tensor.h"

namespace sash::detail {

struct Moments {
  Tensor var;   ///< sum of (x - mean)^2 / divisor
  Tensor mean;  ///< undefined unless asked for
};

/// Over `axes` of x (float32 or float64), which stay with extent 1 as `kept` says; not recorded.
Moments moments(const Tensor& x, const Dims& axes, const Shape& kept, double divisor,
                bool with_mean);

}  // namespace sash::detail
