#include <limits>

#include "../common/limits.h"
#include "../families.h"
#include "selected.h"

/// Attention over selected blocks: the family of kernels that runs a call.
namespace sash::cuda {
namespace {

using kernels::SelectedAttentionParams;

/// Whether a call has no scores. Kernels take no such call.
bool has_no_scores(const AttentionInputs& x, const SelectedAttentionParams& params) {
  return x.q.numel() == 0 || x.k.shape[2] == 0 || params.index.numel() == 0;
}

bool tensor_cores_take(const KernelContext& context, const AttentionInputs& x) {
  const int64_t depth = x.q.shape[3];
  return size_of(x.q.dtype) == 2 && (depth == 64 || depth == 128) && x.v.shape[3] == depth &&
         attention_hopper_runs(context.device) && fits_tensor_map(x.q) && fits_tensor_map(x.k) &&
         fits_tensor_map(x.v);
}

void forward(KernelContext& context, const AttentionInputs& x,
             const SelectedAttentionParams& params, View out, View lse) {
  if (has_no_scores(x, params)) {
    fill(context, out, 0);
    fill(context, lse, std::numeric_limits<double>::infinity());
    return;
  }
  check_extents("attention", x.q, x.k);
  if (tensor_cores_take(context, x)) {
    selected::tensor_core_forward(context, x, params, out, lse);
  } else {
    selected::simple_forward(context, x, params, out, lse);
  }
}

void backward(KernelContext& context, const AttentionInputs& x,
              const SelectedAttentionParams& params, const AttentionGradients& gradients) {
  if (has_no_scores(x, params)) {
    for (const TensorView* y : {&gradients.dq, &gradients.dk, &gradients.dv}) fill(context, *y, 0);
    return;
  }
  check_extents("attention", x.q, x.k);
  if (tensor_cores_take(context, x) && fits_tensor_map(gradients.g)) {
    selected::tensor_core_backward(context, x, params, gradients);
  } else {
    selected::simple_backward(context, x, params, gradients);
  }
}

}  // namespace

void register_selected_attention() {
  kernels::selected_attention_forward.set(DeviceType::cuda, forward);
  kernels::selected_attention_backward.set(DeviceType::cuda, backward);
}

}  // namespace sash::cuda
