#include <cstdlib>
#include <string_view>

#include "../../../tensor/kernels/memory.h"
#include "../attention/common/limits.h"
#include "mma.h"
#include "simple.h"

/// Linear attention: the kernels that run a call.
namespace sash::cuda {
namespace {

/// Whether tensor cores are to be used; SASH_ATTENTION_KERNEL=simple, for tests, says no.
template <class... Views>
bool on_tensor_cores(const KernelContext& context, const Views&... x) {
  const char* name = std::getenv("SASH_ATTENTION_KERNEL");
  return !(name && std::string_view(name) == "simple") && linear::mma_takes(context, x...);
}

void forward(KernelContext& context, const linear::Inputs& x, const linear::Params& params,
             View out, View den) {
  if (den.numel() == 0) return;
  check_extents("linear_attention", x.q, x.k);
  if (on_tensor_cores(context, x)) return linear::mma_forward(context, x, params, out, den);
  linear::simple_forward(context, x, params, out, den);
}

void backward(KernelContext& context, const linear::Inputs& x, const linear::Params& params,
              const linear::Gradients& grads) {
  if (grads.den.numel() == 0) {
    for (const TensorView* y : {&grads.dk, &grads.dv}) {
      if (y->numel() > 0) kernels::fill(context, *y, 0);
    }
    return;
  }
  check_extents("linear_attention", x.q, x.k);
  if (on_tensor_cores(context, x, grads)) {
    return linear::mma_backward(context, x, params, grads);
  }
  linear::simple_backward(context, x, params, grads);
}

void kept_bytes(KernelContext& context, const linear::Inputs& x, const linear::Params& params,
                int64_t& bytes) {
  bytes = on_tensor_cores(context, x) ? linear::mma_kept_bytes(x, params) : 0;
}

}  // namespace

void register_linear_attention() {
  kernels::linear_attention_kept_bytes.set(DeviceType::cuda, kept_bytes);
  kernels::linear_attention_forward.set(DeviceType::cuda, forward);
  kernels::linear_attention_backward.set(DeviceType::cuda, backward);
}

}  // namespace sash::cuda
