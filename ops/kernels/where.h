#pragma once

#include "../../core/kernel.h"
#include "../../core/scalar.h"
#include "../../core/tensor_view.h"

/// Any dtype; cond and mask are bool; inputs broadcast to y's shape.
namespace sash::kernels {

/// y[i] = cond[i] ? a[i] : b[i].
extern SASH_API Kernel<void(KernelContext&, const TensorView& cond, const TensorView& a,
                            const TensorView& b, const TensorView& y)>
    where;

/// y[i] = mask[i] ? value : x[i].
extern SASH_API Kernel<void(KernelContext&, const TensorView& x, const TensorView& mask,
                            const TensorView& y, const Scalar& value)>
    masked_fill;

}  // namespace sash::kernels
