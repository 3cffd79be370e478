#pragma once

#include "common.h"

/// Linear attention on tensor cores: halves, D and D_v multiples of 8 up to 128, rows on 16-byte
/// boundaries. bfloat16 is multiplied as bfloat16. float16 is multiplied as TF32, because sums of
/// features exceed the range of float16.
namespace sash::cuda::linear {

bool mma_takes(const KernelContext& context, const Inputs& x);
bool mma_takes(const KernelContext& context, const Inputs& x, const Gradients& grads);

/// The bytes of the states of the keys, which the forward pass saves for the backward pass.
int64_t mma_kept_bytes(const Inputs& x, const Params& params);

LinearForward mma_forward;
LinearBackward mma_backward;

}  // namespace sash::cuda::linear
