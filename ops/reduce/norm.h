#pragma once

#include "../../tensor/tensor.h"

/// Lengths and spreads. `axes` and `keepdim` are as for `sum`; floating dtypes, else `DTypeError`.
/// Where a result is 0, so is its gradient.
namespace sash {

/// y = (sum_i |x_i|^p)^(1/p): the Euclidean length by default, for p = infinity max_i |x_i|, for
/// -infinity min_i |x_i|, and for p = 0 the number of x_i that are not 0. `ValueError` for NaN;
/// `ShapeError` for no elements if p is infinite or negative.
SASH_API Tensor norm(const Tensor& x, double p = 2, const Dims& axes = {}, bool keepdim = false);

/// y = sqrt(var(x, axes, correction, keepdim)).
SASH_API Tensor std(const Tensor& x, const Dims& axes = {}, int64_t correction = 1,
                    bool keepdim = false);

}  // namespace sash
