#pragma once

#include "../../../ops/kernels/attention.h"
#include "../../../tensor/kernels/memory.h"
#include "../../../tensor/kernels/view.h"

/// The families of attention kernels: which calls each family takes, and its two functions. The
/// functions are specified by `kernels::attention_forward` and `kernels::attention_backward`.
namespace sash::cuda {

using kernels::AttentionGradients;
using kernels::AttentionInputs;
using kernels::AttentionParams;
using kernels::AttentionPass;

using AttentionForward = void(KernelContext& context, const AttentionInputs& inputs,
                              const AttentionParams& params, View out, View lse);
using AttentionBackward = void(KernelContext& context, const AttentionInputs& inputs,
                               const AttentionParams& params, const AttentionGradients& gradients);

/// Fills y, which may have no elements.
inline void fill(KernelContext& context, View y, double value) {
  if (y.numel() > 0) kernels::fill(context, y, value);
}

/// `hopper/`: TMA and wgmma on sm_90 (H100, H200), for float16 and bfloat16.
///
/// Whether these kernels run on a card: compute capability 9.0, code for sm_90a in the library (see
/// common/limits.h), and no SASH_SHARED_MEMORY_LIMIT below what they use.
bool attention_hopper_runs(Device device);

/// Whether they take a call there: heads of 8 to 256 features, a multiple of 8; rows that start at
/// multiples of 16 bytes.
bool attention_hopper_takes(const AttentionInputs& inputs);

AttentionForward attention_hopper_forward;

/// Copies `gradients.g` if its rows do not start at multiples of 16 bytes.
AttentionBackward attention_hopper_backward;

/// `mma/`: the tensor cores of sm_80 and newer, for the halves and for float32 rounded to TF32.
///
/// Whether these kernels take a call: heads of at most 256 features, in a half type, or in float32
/// while TF32 is allowed.
bool attention_mma_takes(const KernelContext& context, const AttentionInputs& inputs);

AttentionForward attention_mma_forward;
AttentionBackward attention_mma_backward;

/// `simple/`: float32 and float64 without tensor cores, on every card.
AttentionForward attention_simple_forward;
AttentionBackward attention_simple_backward;

}  // namespace sash::cuda
