#include "../../../ops/kernels/loss.h"
#include "../elementwise/compute.cuh"

namespace sash::cuda {
namespace {

struct Product {
  __device__ auto operator()(auto x, auto factor) const { return x * factor; }
};

void scale_gradient(KernelContext& context, const TensorView& x, const TensorView& factor,
                    const TensorView& y) {
  dispatch_any_floating(y.dtype, "linear_cross_entropy", [&]<class Y>(TypeTag<Y>) {
    using Wide = compute_t<device_t<Y>>;
    if (x.dtype == y.dtype) return compute<Y, Y, Wide>(context, Product(), y, x, factor);
    compute<Y, Wide, Wide>(context, Product(), y, x, factor);
  });
}

}  // namespace

void register_scale_gradient() { kernels::scale_gradient.set(DeviceType::cuda, scale_gradient); }

}  // namespace sash::cuda
