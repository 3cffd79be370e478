#pragma once

#include "tensor.h"

/// `Tensor::clone`, `contiguous`, `to(DType)` and `to(Device)` are defined beside this.
namespace sash {

/// Copies the elements of `source`, broadcast, cast and moved as needed, to `target`. Not recorded;
/// `copy_` is.
SASH_API void copy_elements(const Tensor& source, const Tensor& target);

}  // namespace sash
