#pragma once

#include "common.h"

/// Causal linear attention by wgmma on sm_90: bfloat16, D and D_v multiples of 8 up to 128, tensors
/// that TMA copies can read.
namespace sash::cuda::linear {

bool hopper_takes(const KernelContext& context, const Inputs& x, const Params& params);
bool hopper_takes(const Gradients& grads);

/// The bytes of the states of the keys, which the forward pass saves for the backward pass.
int64_t hopper_kept_bytes(const Inputs& x);

LinearForward hopper_forward;
LinearBackward hopper_backward;

}  // namespace sash::cuda::linear
