#pragma once

#include "../../tensor/tensor.h"

namespace sash {

/// counts[i] = how many elements of x [N] are i: int64 [max(x) + 1], or `min_length` if that is
/// more. With weights [N] each element counts as its weight: the result is float32 if they are,
/// else float64. x is of integers that are not negative. Waits for the device. Not differentiable.
/// `ValueError` for negative elements, `DTypeError`, `ShapeError`.
SASH_API Tensor bincount(const Tensor& x, const Tensor& weights = {}, int64_t min_length = 0);

}  // namespace sash
