#pragma once

#include "../../tensor/tensor.h"

/// Copies: `Tensor::clone`, `contiguous`, `to(DType)` and `to(Device)` are declared in tensor.h and
/// defined here. Each is differentiable; a cast's gradient is cast back.
namespace sash {

/// Writes the elements of `source`, broadcast, cast and moved as needed, over those of `target`.
/// Not recorded; `copy_` is.
SASH_API void copy_elements(const Tensor& source, const Tensor& target);

}  // namespace sash
