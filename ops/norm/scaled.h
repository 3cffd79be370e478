#pragma once

#include "../../tensor/tensor.h"

namespace sash::detail {

/// (x - mean) scale + shift for each channel of x [N, C, ...], where the three are [C], or [N C]
/// for each channel of each item. Not recorded.
Tensor scaled(const Tensor& x, const Tensor& mean, const Tensor& scale, const Tensor& shift);

}  // namespace sash::detail
