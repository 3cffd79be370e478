#pragma once

#include "../../tensor/tensor.h"

/// Helpers of ops that index slices.
namespace sash::detail {

/// A contiguous 1-dimensional index, repeated along the other axes of `shape`.
Tensor spread(const Tensor& index, const Shape& shape, int axis);

/// Whether a later element of the index along `axis` names the same place of a tensor of `shape`.
Tensor overwritten(const Shape& shape, int axis, const Tensor& index);

}  // namespace sash::detail
