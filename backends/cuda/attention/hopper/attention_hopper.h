#pragma once

#include "../../../../ops/kernels/attention.h"

/// Attention with TMA and wgmma on sm_90 (H100, H200), for float16 and bfloat16.
namespace sash::cuda {

/// Whether these kernels run on a card: compute capability 9.0, code for sm_90a in the library (see
/// attention_limits.h), and no SASH_SHARED_MEMORY_LIMIT below what they use.
bool attention_hopper_runs(Device device);

/// Whether they take a call there: heads of 8 to 256 features, a multiple of 8; rows that start at
/// multiples of 16 bytes.
bool attention_hopper_takes(const kernels::AttentionInputs& inputs);

/// As `kernels::attention_forward`.
void attention_hopper_forward(KernelContext& context, const kernels::AttentionInputs& inputs,
                              const kernels::AttentionParams& params, const TensorView& out,
                              const TensorView& lse);

/// As `kernels::attention_backward`. Copies `gradients.g` if its rows do not start at multiples of
/// 16 bytes.
void attention_hopper_backward(KernelContext& context, const kernels::AttentionInputs& inputs,
                               const kernels::AttentionParams& params,
                               const kernels::AttentionGradients& gradients);

}  // namespace sash::cuda
