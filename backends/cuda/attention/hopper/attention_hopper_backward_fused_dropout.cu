#include "attention_hopper_backward_fused.cuh"

namespace sash::cuda::hopper {

template <class T>
void backward_fused_dropout(const KernelContext& context, const Fused<T>& call) {
  launch_fused<WithDropout<FusedShape<T>>>(context, call);
}

template void backward_fused_dropout(const KernelContext&, const Fused<__nv_bfloat16>&);
template void backward_fused_dropout(const KernelContext&, const Fused<__half>&);

}  // namespace sash::cuda::hopper
