#pragma once

#include "../../core/scalar.h"
#include "view.h"

/// Kernels that tensors themselves need. Views may be strided. Any dtype, unless noted.
namespace sash::kernels {

/// y[i] = value.
extern SASH_API Kernel<void(KernelContext&, View y, const Scalar& value)> fill;

/// y[i] = cast(x[i]): x broadcasts to y's shape, dtypes are free. No two elements of y may share
/// memory.
/// Floating to integer truncates; to bool is x != 0.
extern SASH_API Kernel<void(KernelContext&, View x, View y)> copy;

/// y[i] = start + i step, i the row-major index.
extern SASH_API Kernel<void(KernelContext&, View y, const Scalar& start, const Scalar& step)>
    arange;

}  // namespace sash::kernels
