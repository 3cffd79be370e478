#include "attention_hopper_forward.cuh"

namespace sash::cuda::hopper {

template <class T>
void forward_dropout(const KernelContext& context, const Forward<T>& call, int width) {
  if (width == 64) return launch_forward<WithDropout<ForwardShapes<T, 64, false>>>(context, call);
  launch_forward<WithDropout<ForwardShapes<T, 128, false>>>(context, call);
}

template void forward_dropout(const KernelContext&, const Forward<__nv_bfloat16>&, int);
template void forward_dropout(const KernelContext&, const Forward<__half>&, int);

}  // namespace sash::cuda::hopper
