#pragma once

#include "../../../ops/kernels/attention.h"

namespace sash::cpu {

void attention_backward(KernelContext& context, const kernels::AttentionInputs& inputs,
                        const kernels::AttentionParams& params,
                        const kernels::AttentionGradients& gradients);

}  // namespace sash::cpu
