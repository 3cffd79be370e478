#include "../../../ops/kernels/norm.h"
#include "../elementwise/compute.cuh"

namespace sash::cuda {
namespace {

struct Scale {
  __device__ auto operator()(auto x, auto mean, auto scale, auto shift) const {
    return (x - mean) * scale + shift;
  }
};

void scale_channels(KernelContext& context, const TensorView& x, const TensorView& mean,
                    const TensorView& scale, const TensorView& shift, const TensorView& y) {
  const auto column = [](TensorView channels) {  // [C, 1]
    channels.shape.push_back(1);
    channels.strides.push_back(0);
    return channels;
  };
  dispatch_floating(x.dtype, "batch_norm", [&]<class T>(TypeTag<T>) {
    elementwise<T, T, T, T, T>(context, Scale{}, y, x, column(mean), column(scale), column(shift));
  });
}

}  // namespace

void register_scale_channels() { kernels::scale_channels.set(DeviceType::cuda, scale_channels); }

}  // namespace sash::cuda
