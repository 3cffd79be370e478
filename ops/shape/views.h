#pragma once

#include "../../tensor/tensor.h"

/// views.cpp also defines the views of `Tensor`: `view`, `reshape`, `permute`, `slice` and others.
namespace sash {

/// The gradient of `slice`: zeros of `shape`, except for `x` at `start, start + step, ...` of
/// `axis`. Differentiable; its own gradient is the slice.
SASH_API Tensor slice_backward(const Tensor& x, const Shape& shape, int axis, int64_t start,
                               int64_t step);

/// The gradient of `Tensor::unfold`: zeros of `shape`, to which the windows x are added in order.
/// Differentiable; its own gradient are the windows.
SASH_API Tensor unfold_backward(const Tensor& x, const Shape& shape, int axis, int64_t step);

}  // namespace sash
