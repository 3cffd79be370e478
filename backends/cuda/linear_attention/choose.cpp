#include "../../../tensor/kernels/memory.h"
#include "../attention/common/limits.h"
#include "../attention/common/named_kernels.h"
#include "hopper.h"
#include "mma.h"
#include "simple.h"

/// Linear attention: the kernels that run a call.
namespace sash::cuda {
namespace {

using Kernels = AttentionKernels;

Kernels kernels_for(const KernelContext& context, const linear::Inputs& x,
                    const linear::Params& params) {
  const Kernels first = named_attention_kernels().value_or(Kernels::hopper);
  if (first == Kernels::hopper && linear::hopper_takes(context, x, params)) return first;
  return first != Kernels::simple && linear::mma_takes(context, x) ? Kernels::mma : Kernels::simple;
}

void forward(KernelContext& context, const linear::Inputs& x, const linear::Params& params,
             View out, View den) {
  if (den.numel() == 0) return;
  check_extents("linear_attention", x.q, x.k);
  switch (kernels_for(context, x, params)) {
    case Kernels::hopper:
      return linear::hopper_forward(context, x, params, out, den);
    case Kernels::mma:
      return linear::mma_forward(context, x, params, out, den);
    case Kernels::simple:
      return linear::simple_forward(context, x, params, out, den);
  }
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
  const Kernels before = kernels_for(context, x, params);
  if (before == Kernels::hopper && linear::hopper_takes(grads)) {
    return linear::hopper_backward(context, x, params, grads);
  }
  linear::Params own = params;
  if (before == Kernels::hopper) own.kept = nullptr;  // the states of other chunks
  if (before != Kernels::simple && linear::mma_takes(context, x, grads)) {
    return linear::mma_backward(context, x, own, grads);
  }
  linear::simple_backward(context, x, own, grads);
}

void kept_bytes(KernelContext& context, const linear::Inputs& x, const linear::Params& params,
                int64_t& bytes) {
  const Kernels kind = kernels_for(context, x, params);
  bytes = kind == Kernels::hopper ? linear::hopper_kept_bytes(x)
          : kind == Kernels::mma  ? linear::mma_kept_bytes(x, params)
                                  : 0;
}

}  // namespace

void register_linear_attention() {
  kernels::linear_attention_kept_bytes.set(DeviceType::cuda, kept_bytes);
  kernels::linear_attention_forward.set(DeviceType::cuda, forward);
  kernels::linear_attention_backward.set(DeviceType::cuda, backward);
}

}  // namespace sash::cuda
