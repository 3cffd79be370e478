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

/// Which chunks' states a chunk is multiplied with: of the chunks before it, behind it, or of all.
enum class Scan { before, behind, all };

/// `states` are `heads` runs of max(chunks, 1) states of `size` elements. Within each run, replaces
/// each state by the sum of the states before it or behind it. For `Scan::all`, replaces only the
/// first state, by the sum of all states.
void scan_states(const KernelContext& context, Scan scan, float* states, int64_t heads, int chunks,
                 int64_t size);
void scan_states(const KernelContext& context, Scan scan, double* states, int64_t heads, int chunks,
                 int64_t size);

/// c = -(g . out) / den for each query: [B, H, S_q], in the dtype of den.
void form_dots(const KernelContext& context, const Gradients& grads, void* dots);

}  // namespace sash::cuda::linear
