#include "../attention/common/limits.h"
#include "../attention/common/named_kernels.h"
#include "mma.h"
#include "simple.h"

/// The gated delta rule: the kernels that run a call. Both passes choose by the inputs alone,
/// because the forward pass keeps memory in its kernels' layout.
namespace sash::cuda {
namespace {

bool on_tensor_cores(const KernelContext& context, const kernels::DeltaInputs& x) {
  return named_attention_kernels() != AttentionKernels::simple && delta::mma_takes(context, x);
}

void kept_bytes(KernelContext& context, const kernels::DeltaInputs& x, int64_t& bytes) {
  bytes = on_tensor_cores(context, x) ? delta::mma_kept_bytes(context, x)
                                      : x.states_size() * (x.q.dtype == DType::float64 ? 8 : 4);
}

void forward(KernelContext& context, const kernels::DeltaInputs& x, View out, View state,
             const TensorView* kept) {
  check_extents("gated_delta_rule", x.v, x.k);
  if (state.numel() == 0 && out.numel() == 0) return;
  const auto run = on_tensor_cores(context, x) ? delta::mma_forward : delta::simple_forward;
  run(context, x, out, state, kept);
}

void backward(KernelContext& context, const kernels::DeltaInputs& x,
              const kernels::DeltaGradients& grads) {
  check_extents("gated_delta_rule", x.v, x.k);
  const auto run = on_tensor_cores(context, x) ? delta::mma_backward : delta::simple_backward;
  run(context, x, grads);
}

}  // namespace

void register_delta_rule() {
  kernels::delta_rule_kept_bytes.set(DeviceType::cuda, kept_bytes);
  kernels::delta_rule_forward.set(DeviceType::cuda, forward);
  kernels::delta_rule_backward.set(DeviceType::cuda, backward);
}

}  // namespace sash::cuda
