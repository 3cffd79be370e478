#pragma once

#include "../../core/kernel.h"
#include "../../core/tensor_view.h"

namespace sash::kernels {

/// y = x w' + bias: x [rows, in], w [out, in], bias [out] (contiguous) or null, y [rows, out]
/// (contiguous); one floating dtype. x and w have any strides.
extern SASH_API Kernel<void(KernelContext&, const TensorView& x, const TensorView& w,
                            const TensorView* bias, const TensorView& y)>
    linear_forward;

}  // namespace sash::kernels
