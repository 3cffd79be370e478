#pragma once

#include "../../../ops/kernels/delta_rule.h"

namespace sash::cuda::delta {

/// The slot `delta_rule_backward`.
void backward(KernelContext& context, const kernels::DeltaInputs& x,
              const kernels::DeltaGradients& grads);

}  // namespace sash::cuda::delta
