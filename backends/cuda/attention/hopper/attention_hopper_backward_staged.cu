#include "attention_hopper_backward_staged.cuh"

namespace sash::cuda::hopper {

template <class T>
void backward_staged(const KernelContext& context, const Fused<T>& call, int width) {
  if (width == 64) return launch_staged<StagedShape<T, 64>>(context, call);
  launch_staged<StagedShape<T, 128>>(context, call);
}

template void backward_staged(const KernelContext&, const Fused<__nv_bfloat16>&, int);
template void backward_staged(const KernelContext&, const Fused<__half>&, int);

}  // namespace sash::cuda::hopper
