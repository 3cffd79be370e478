#include "attention_hopper_backward_staged.cuh"

namespace sash::cuda::hopper {

template <class T>
void backward_staged_dropout(const KernelContext& context, const Fused<T>& call) {
  launch_staged<WithDropout<StagedShape<T, 128>>>(context, call);
}

template void backward_staged_dropout(const KernelContext&, const Fused<__nv_bfloat16>&);
template void backward_staged_dropout(const KernelContext&, const Fused<__half>&);

}  // namespace sash::cuda::hopper
