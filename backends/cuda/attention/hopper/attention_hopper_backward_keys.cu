#include "attention_hopper_backward_keys.cuh"

namespace sash::cuda::hopper {

template void backward_keys<__nv_bfloat16, false>(const KernelContext&,
                                                  const Backward<__nv_bfloat16>&, int);
template void backward_keys<__half, false>(const KernelContext&, const Backward<__half>&, int);

}  // namespace sash::cuda::hopper
