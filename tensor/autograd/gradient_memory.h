#pragma once

#include "../tensor.h"

namespace sash {

/// Whether `tensor` is the only handle to its elements, which are contiguous.
SASH_API bool owns_alone(const Tensor& tensor);

/// For a backward closure with a kernel that may write over its input: where to put a gradient that
/// is like `g`, the gradient of an output. It is g itself if nothing else can see its elements, and
/// uninitialised memory else.
SASH_API Tensor overwritable(const Tensor& g);

}  // namespace sash
