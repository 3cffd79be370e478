#pragma once

#include "../../../ops/kernels/delta_rule.h"

namespace sash::cuda::delta {

/// `kernels::delta_rule_forward` and `kernels::delta_rule_backward` without tensor cores.
void simple_forward(KernelContext& context, const kernels::DeltaInputs& x, View out, View state,
                    const TensorView* kept);
void simple_backward(KernelContext& context, const kernels::DeltaInputs& x,
                     const kernels::DeltaGradients& grads);

}  // namespace sash::cuda::delta
