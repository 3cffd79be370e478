#pragma once

#include "../../core/kernel.h"
#include "../../core/tensor_view.h"

/// y[i] = f(a[i], b[i]): dtypes equal, a and b broadcast to y's shape; y may be the same view as a
/// or b. Floating dtypes, int32 and int64, unless said otherwise.
namespace sash::kernels {

using BinaryKernel =
    Kernel<void(KernelContext&, const TensorView& a, const TensorView& b, const TensorView& y)>;

extern SASH_API BinaryKernel add;
extern SASH_API BinaryKernel sub;
extern SASH_API BinaryKernel mul;
extern SASH_API BinaryKernel div;  ///< floating
extern SASH_API BinaryKernel pow;  ///< floating
extern SASH_API BinaryKernel maximum;
extern SASH_API BinaryKernel minimum;

}  // namespace sash::kernels
