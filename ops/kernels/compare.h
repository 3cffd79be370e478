#pragma once

#include "../../core/kernel.h"
#include "../../core/scalar.h"
#include "../../core/tensor_view.h"

/// y[i] = relation(a[i], b[i]) as bool: a and b of one dtype, whichever,
/// broadcast to y's shape. NaN is unequal to everything.
namespace sash::kernels {

using CompareKernel =
    Kernel<void(KernelContext&, const TensorView& a, const TensorView& b, const TensorView& y)>;
using CompareScalarKernel =
    Kernel<void(KernelContext&, const TensorView& x, const TensorView& y, const Scalar& value)>;

extern SASH_API CompareKernel eq;
extern SASH_API CompareKernel ne;
extern SASH_API CompareKernel lt;
extern SASH_API CompareKernel le;
extern SASH_API CompareKernel gt;
extern SASH_API CompareKernel ge;

// The value takes a floating x's dtype; an integer or bool x is compared in int64.
extern SASH_API CompareScalarKernel eq_scalar;
extern SASH_API CompareScalarKernel ne_scalar;
extern SASH_API CompareScalarKernel lt_scalar;
extern SASH_API CompareScalarKernel le_scalar;
extern SASH_API CompareScalarKernel gt_scalar;
extern SASH_API CompareScalarKernel ge_scalar;

extern SASH_API CompareKernel logical_and;  ///< bool
extern SASH_API CompareKernel logical_or;   ///< bool
extern SASH_API Kernel<void(KernelContext&, const TensorView& x, const TensorView& y)>
    logical_not;  ///< bool
extern SASH_API Kernel<void(KernelContext&, const TensorView& x, const TensorView& y)>
    isnan;  ///< x floating

}  // namespace sash::kernels
