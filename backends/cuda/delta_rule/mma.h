#pragma once

#include "../../../ops/kernels/delta_rule.h"

/// The gated delta rule on tensor cores: bfloat16, D and D_v multiples of 8 up to 128, rows on
/// 16-byte boundaries, 64 tokens or more. Sums are in float32. The factors of products are rounded
/// to bfloat16, also the states, as in flash-linear-attention.
namespace sash::cuda::delta {

bool mma_takes(const KernelContext& context, const kernels::DeltaInputs& x);
int64_t mma_kept_bytes(const KernelContext& context, const kernels::DeltaInputs& x);

void mma_forward(KernelContext& context, const kernels::DeltaInputs& x, View out, View state,
                 const TensorView* kept);
void mma_backward(KernelContext& context, const kernels::DeltaInputs& x,
                  const kernels::DeltaGradients& grads);

}  // namespace sash::cuda::delta
