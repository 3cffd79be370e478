#pragma once

#include "../tensor.h"

namespace sash {

/// Whether `tensor` is the only handle to its elements, which are contiguous.
SASH_API bool owns_alone(const Tensor& tensor);

/// Returns memory for a gradient of the shape and dtype of `g`, the gradient of an output, for a
/// kernel that may write over its input: g itself if nothing else can see the elements of g, else
/// uninitialised memory.
SASH_API Tensor overwritable(const Tensor& g);

}  // namespace sash
