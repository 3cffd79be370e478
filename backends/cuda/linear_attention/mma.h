#pragma once

#include "common.h"

/// Linear attention on tensor cores: halves, D and D_v multiples of 8 up to 128, rows on 16-byte
/// boundaries. bfloat16 is multiplied as it is; float16 as TF32, because sums of features exceed
/// its range.
namespace sash::cuda::linear {

bool mma_takes(const KernelContext& context, const Inputs& x);
bool mma_takes(const KernelContext& context, const Inputs& x, const Gradients& grads);

/// Of the states of the keys, which the forward pass keeps for the backward pass.
int64_t mma_kept_bytes(const Inputs& x, const Params& params);

LinearForward mma_forward;
LinearBackward mma_backward;

}  // namespace sash::cuda::linear
