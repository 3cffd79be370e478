#pragma once

#include "../../../../ops/kernels/attention.h"

namespace sash::cuda {

/// `kernels::attention_backward` for float32 and float64, without tensor cores.
void backward_simple(const KernelContext& context, const kernels::AttentionInputs& inputs,
                     const kernels::AttentionParams& params,
                     const kernels::AttentionGradients& gradients);

}  // namespace sash::cuda
