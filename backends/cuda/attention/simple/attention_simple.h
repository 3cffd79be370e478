#pragma once

#include "../../../../ops/kernels/attention.h"

/// Attention in float32 and float64, without tensor cores, on every card.
namespace sash::cuda {

/// As `kernels::attention_forward`.
void attention_simple_forward(KernelContext& context, const kernels::AttentionInputs& inputs,
                              const kernels::AttentionParams& params, const TensorView& out,
                              const TensorView& lse);

/// As `kernels::attention_backward`.
void attention_simple_backward(KernelContext& context, const kernels::AttentionInputs& inputs,
                               const kernels::AttentionParams& params,
                               const kernels::AttentionGradients& gradients);

}  // namespace sash::cuda
