#include "attention_hopper_forward.cuh"

namespace sash::cuda::hopper {

template void forward<__nv_bfloat16, true>(const KernelContext&, const Forward<__nv_bfloat16>&,
                                           int);
template void forward<__half, true>(const KernelContext&, const Forward<__half>&, int);

}  // namespace sash::cuda::hopper
