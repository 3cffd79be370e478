#pragma once

#include "../../tensor/kernels/view.h"

/// Reductions besides `sum` (tensor/kernels/gradients.h): x has the full shape, y the same rank
/// with extent 1 on the reduced axes.
namespace sash::kernels {

/// y = max (min) of x over the axes where y has extent 1; NaN wins. The axes are not empty.
extern SASH_API Kernel<void(KernelContext&, View x, View y)> amax;
extern SASH_API Kernel<void(KernelContext&, View x, View y)> amin;

/// y = the product of x; float32 (multiplied in float64) and float64.
extern SASH_API Kernel<void(KernelContext&, View x, View y)> prod;

/// dx = g times the product of the other x along one axis, where g has extent 1; float32
/// (multiplied in float64) and float64, dx with the strides of x. Of the CPU only.
extern SASH_API Kernel<void(KernelContext&, View x, View g, View dx, int axis)> prod_backward;

/// y = sqrt(sum of x^2); float32 (summed in float64) and float64.
extern SASH_API Kernel<void(KernelContext&, View x, View y)> length;

/// y (bool) = whether any (every) x is not 0; any dtype.
extern SASH_API Kernel<void(KernelContext&, View x, View y)> any;
extern SASH_API Kernel<void(KernelContext&, View x, View y)> all;

/// var = sum of (x - mean)^2 / divisor, or the root of that; mean may be a null view, else it has
/// the shape and strides of var. Of equal x, exactly 0 and x. float32 and float64, in float64.
extern SASH_API Kernel<void(KernelContext&, View x, View var, View mean, double divisor, bool root)>
    var_mean;

/// y (int64) = index of the first max (min) along one axis, where y has extent 1; NaN wins.
extern SASH_API Kernel<void(KernelContext&, View x, View y, int axis)> argmax;
extern SASH_API Kernel<void(KernelContext&, View x, View y, int axis)> argmin;

/// y[i] = sum of x[0 .. i] along one axis, whose strides may be negative; shapes and floating
/// dtypes equal.
extern SASH_API Kernel<void(KernelContext&, View x, View y, int axis)> cumsum;

/// y[i] = the product of x[0 .. i] along one axis; float32, float64 and int64. Of the CPU only: the
/// backward pass reads x on the host.
extern SASH_API Kernel<void(KernelContext&, View x, View y, int axis)> cumprod;

}  // namespace sash::kernels
