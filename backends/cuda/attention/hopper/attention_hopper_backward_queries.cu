#include "attention_hopper_backward_queries.cuh"

namespace sash::cuda::hopper {

template void backward_queries<__nv_bfloat16, false>(const KernelContext&,
                                                     const Backward<__nv_bfloat16>&, int);
template void backward_queries<__half, false>(const KernelContext&, const Backward<__half>&, int);

}  // namespace sash::cuda::hopper
