#pragma once

#include <cstdint>

#include "../../../ops/kernels/linear_attention.h"

/// Steps that the kernels with and without tensor cores share.
namespace sash::cuda::linear {

using Inputs = kernels::LinearAttentionInputs;
using Params = kernels::LinearAttentionParams;
using Gradients = kernels::LinearAttentionGradients;

using LinearForward = void(const KernelContext& context, const Inputs& x, const Params& params,
                           View out, View den);
using LinearBackward = void(const KernelContext& context, const Inputs& x, const Params& params,
                            const Gradients& grads);

/// Which chunks' states a chunk is multiplied with.
enum class Scan { before, behind, all };

/// For each of `heads` runs of max(chunks, 1) states of `size` elements: replaces each by the sum
/// of those before it, or behind it; for `all`, the first by the sum of all.
void scan_states(const KernelContext& context, Scan scan, float* states, int64_t heads, int chunks,
                 int64_t size);
void scan_states(const KernelContext& context, Scan scan, double* states, int64_t heads, int chunks,
                 int64_t size);

/// c = -(g . out) / den for each query, [B, H, S_q], of the dtype of den.
void form_dots(const KernelContext& context, const Gradients& grads, void* dots);

}  // namespace sash::cuda::linear
