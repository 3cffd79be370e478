#pragma once

#include "../../tensor/tensor.h"
#include "reduction.h"

namespace sash {

/// (a_i - b_i)^2, reduced over all elements; differentiable in both. The shapes are equal: throws
/// `ShapeError` otherwise, `DTypeError` or `DeviceError` if dtype or device differ. The mean of
/// nothing is NaN. Floating dtypes.
SASH_API Tensor mse_loss(const Tensor& a, const Tensor& b, Reduction reduction = Reduction::mean);

namespace composite {
/// `mse_loss` from plain ops.
SASH_API Tensor mse_loss(const Tensor& a, const Tensor& b, Reduction reduction = Reduction::mean);
}  // namespace composite

}  // namespace sash
