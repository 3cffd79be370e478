#pragma once

#include "../../tensor/tensor.h"

/// Views share memory with their input; `Tensor::view`, `reshape`, `permute`, `slice` and the like
/// are declared in tensor.h and defined here, beside their gradients.
namespace sash {

/// The gradient of `slice`: zeros of `shape`, but for `x` at `start, start + step, ...` of `axis`.
/// Differentiable; its own gradient is the slice.
SASH_API Tensor unslice(const Tensor& x, const Shape& shape, int axis, int64_t start, int64_t step);

}  // namespace sash
