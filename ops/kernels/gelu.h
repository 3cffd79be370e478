#pragma once

#include "../../core/kernel.h"
#include "../../core/tensor_view.h"

/// GELU, element by element; views of one shape and floating dtype, any strides.
namespace sash::kernels {

/// y = x P(x), where P is the normal distribution function or, if `tanh`, its approximation
/// P(x) = (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2.
extern SASH_API Kernel<void(KernelContext&, const TensorView& x, const TensorView& y, bool tanh)>
    gelu_forward;

/// dx = g (P(x) + x P'(x)).
extern SASH_API Kernel<void(KernelContext&, const TensorView& x, const TensorView& g,
                            const TensorView& dx, bool tanh)>
    gelu_backward;

}  // namespace sash::kernels
