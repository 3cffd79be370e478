#pragma once

#include "../../core/kernel.h"
#include "../../core/tensor_view.h"

/// Squared differences; a and b have one shape and floating dtype.
namespace sash::kernels {

/// y = scale sum (a - b)^2, a single element; a and b are contiguous.
extern SASH_API Kernel<void(KernelContext&, const TensorView& a, const TensorView& b,
                            const TensorView& y, double scale)>
    mse_loss_forward;

/// da = 2 scale g (a - b), with g a single element.
extern SASH_API Kernel<void(KernelContext&, const TensorView& a, const TensorView& b,
                            const TensorView& g, const TensorView& da, double scale)>
    mse_loss_backward;

}  // namespace sash::kernels
