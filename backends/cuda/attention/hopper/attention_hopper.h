#pragma once

#include "../../../../ops/kernels/attention.h"

/// Attention by the copy engine and the tensor cores of sm_90 (H100, H200), for the halves.
namespace sash::cuda {

/// Whether these kernels run on a card: of compute capability 9.0, with code for sm_90a in the
/// library (see attention_limits.h), and no forced limit of shared memory below what they use.
bool attention_hopper_runs(Device device);

/// Whether they take a call there: heads of 8 to 256 features, a multiple of 8; rows that start at
/// multiples of 16 bytes.
bool attention_hopper_takes(const kernels::AttentionInputs& inputs);

/// As `kernels::attention_forward`.
void attention_hopper_forward(KernelContext& context, const kernels::AttentionInputs& inputs,
                              const kernels::AttentionParams& params, const TensorView& out,
                              const TensorView& lse);

/// As `kernels::attention_backward`. `gradients.g` has to start rows at multiples of 16 bytes too;
/// it is copied where it does not.
void attention_hopper_backward(KernelContext& context, const kernels::AttentionInputs& inputs,
                               const kernels::AttentionParams& params,
                               const kernels::AttentionGradients& gradients);

}  // namespace sash::cuda
