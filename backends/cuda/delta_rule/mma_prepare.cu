#include "mma_prepare.cuh"

namespace sash::cuda::delta {
namespace {

/// A block of threads for each chunk of each value head.
template <int kWidth, bool kFeatures>
__global__ void __launch_bounds__(kCount, kFeatures ? 2 : 3)
    prepare_kernel(const __grid_constant__ Call x) {
  extern __shared__ __align__(128) unsigned char shared[];
  const int heads = x.sizes.value_heads, block = static_cast<int>(blockIdx.x);
  const Place at = x.sizes.place_of_slot(block / heads);
  if (at.count > 0) prepare_chunk<kWidth, kFeatures>(x, at, block % heads, shared);
}

}  // namespace

template <int kWidth>
void prepare(const KernelContext& context, const Call& call) {
  with_gates(call.sizes, [&]<bool kFeatures>() {
    launch<prepare_kernel<kWidth, kFeatures>>(context, call.sizes.slots * call.sizes.value_heads,
                                              kCount, PrepareShared<kWidth, kFeatures>::kBytes,
                                              call);
  });
}

template void prepare<64>(const KernelContext&, const Call&);
template void prepare<128>(const KernelContext&, const Call&);

}  // namespace sash::cuda::delta
