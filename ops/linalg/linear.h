#pragma once

#include "../../tensor/tensor.h"

namespace sash {

/// y = x W' + b along the last axis: x [..., in], weight [out, in], bias [out] or undefined, giving
/// y [..., out]. Floating dtypes, whose bias is added within the product, and integers.
/// `ShapeError` unless weight and bias fit x.
SASH_API Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {});

}  // namespace sash
