#pragma once

#include "../../core/backend/kernel.h"
#include "../../core/backend/tensor_view.h"

namespace sash::kernels {

/// y = x w' + bias: x [rows, in], w [out, in], bias [out] (contiguous) or null, y [rows, out]
/// (contiguous); one floating dtype. x and w have any strides.
extern SASH_API Kernel<void(KernelContext&, const TensorView& x, const TensorView& w,
                            const TensorView* bias, const TensorView& y)>
    linear_forward;

}  // namespace sash::kernels

namespace sash::kernels {

/// c = alpha a b + beta c: a [..., M, K], b [..., K, N], c [..., M, N], one floating dtype. The
/// batch axes agree (stride 0 where an operand is broadcast); any strides are taken, transposed
/// operands without a copy. c has unit stride along one of its last two axes, and is not read if
/// beta = 0.
extern SASH_API Kernel<void(KernelContext&, const TensorView& a, const TensorView& b,
                            const TensorView& c, double alpha, double beta)>
    matmul;

}  // namespace sash::kernels
