#pragma once

#include "../../core/kernel.h"
#include "../../core/tensor_view.h"

/// Softmax over the last axis. All views are contiguous, of one shape and floating dtype.
namespace sash::kernels {

/// y = exp(x - max) / sum exp(x - max); a row of nothing but -inf gives zeros.
extern SASH_API Kernel<void(KernelContext&, const TensorView& x, const TensorView& y)>
    softmax_forward;

/// dx = y (g - sum g y).
extern SASH_API
    Kernel<void(KernelContext&, const TensorView& y, const TensorView& g, const TensorView& dx)>
        softmax_backward;

/// y = x - max - log sum exp(x - max); a row of nothing but -inf stays as it is.
extern SASH_API Kernel<void(KernelContext&, const TensorView& x, const TensorView& y)>
    log_softmax_forward;

/// dx = g - exp(y) sum g.
extern SASH_API
    Kernel<void(KernelContext&, const TensorView& y, const TensorView& g, const TensorView& dx)>
        log_softmax_backward;

}  // namespace sash::kernels
