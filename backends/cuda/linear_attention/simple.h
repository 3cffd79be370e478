#pragma once

#include "../../../ops/kernels/linear_attention.h"

/// Linear attention without tensor cores: any floating dtype, any number of features. Products run
/// in float32, or in float64 for float64.
namespace sash::cuda::linear {

void simple_forward(const KernelContext& context, const kernels::LinearAttentionInputs& x,
                    const kernels::LinearAttentionParams& params, const TensorView& out,
                    const TensorView& den);

void simple_backward(const KernelContext& context, const kernels::LinearAttentionInputs& x,
                     const kernels::LinearAttentionParams& params,
                     const kernels::LinearAttentionGradients& grads);

}  // namespace sash::cuda::linear
