#pragma once

#include "../../../../ops/kernels/attention.h"

/// Attention by the tensor cores of sm_80 and newer, for the halves and for float32 rounded to
/// TF32.
namespace sash::cuda {

/// Whether these kernels take `inputs`: heads of at most 256 features, in a half type, or in
/// float32 while TF32 is allowed.
bool attention_mma_takes(const KernelContext& context, const kernels::AttentionInputs& inputs);

/// As `kernels::attention_forward`.
void attention_mma_forward(KernelContext& context, const kernels::AttentionInputs& inputs,
                           const kernels::AttentionParams& params, const TensorView& out,
                           const TensorView& lse);

/// As `kernels::attention_backward`.
void attention_mma_backward(KernelContext& context, const kernels::AttentionInputs& inputs,
                            const kernels::AttentionParams& params,
                            const kernels::AttentionGradients& gradients);

}  // namespace sash::cuda
