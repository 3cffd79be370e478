#include "attention_hopper_backward_fused.cuh"

namespace sash::cuda::hopper {

template <class T>
void backward_fused_dropout(const KernelContext& context, const Fused<T>& call, int width) {
  if (width == 64) return launch_fused<WithDropout<FusedShapes<T, 64>>>(context, call);
  launch_fused<WithDropout<FusedShapes<T, 128>>>(context, call);
}

template void backward_fused_dropout(const KernelContext&, const Fused<__nv_bfloat16>&, int);
template void backward_fused_dropout(const KernelContext&, const Fused<__half>&, int);

}  // namespace sash::cuda::hopper
