#include "../../../ops/kernels/norm.h"

#include "norm_forward.cuh"

namespace sash::cuda {
namespace {

template <class T>
Norm<T, true> norm_of(View x, View weight, View bias, View y, View mean, View rstd, double eps) {
  using A = compute_t<T>;
  return {x.ptr<T>(),    weight.ptr<T>(), bias.ptr<T>(),      y.ptr<T>(),
          mean.ptr<A>(), rstd.ptr<A>(),   static_cast<A>(eps)};
}

void layer_norm_forward(KernelContext& context, View x, View weight, View bias, View y, View mean,
                        View rstd, double eps) {
  dispatch_device_floating(x.dtype, "layer_norm", [&]<class T>(TypeTag<T>) {
    over_rows<T>(context, norm_of<T>(x, weight, bias, y, mean, rstd, eps), x.shape[0], x.shape[1],
                 {x.data, weight.data, bias.data, y.data});
  });
}

void dropout_add_layer_norm_forward(KernelContext& context, View branch, View residual, View weight,
                                    View bias, const kernels::BranchDropout& dropout, View sum,
                                    View y, View mean, View rstd, double eps) {
  dispatch_device_floating(sum.dtype, "dropout_add_layer_norm", [&]<class T>(TypeTag<T>) {
    const SumNorm<T, true> forward{branch.ptr<T>(), residual.ptr<T>(), sum.ptr<T>(),
                                   DropoutFactors<compute_t<T>>(dropout.p, dropout.state),
                                   norm_of<T>(sum, weight, bias, y, mean, rstd, eps)};
    over_rows_ahead<T>(context, forward, norm_rows<16 / sizeof(T), T, true>, sum.shape[0],
                       sum.shape[1],
                       {branch.data, residual.data, weight.data, bias.data, sum.data, y.data});
  });
}

struct Scale {
  __device__ auto operator()(auto x, auto mean, auto scale, auto shift) const {
    return (x - mean) * scale + shift;
  }
};

void scale_channels(KernelContext& context, View x, View mean, View scale, View shift, View y) {
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

void register_layer_norm() {
  kernels::layer_norm_forward.set(DeviceType::cuda, layer_norm_forward);
  kernels::dropout_add_layer_norm_forward.set(DeviceType::cuda, dropout_add_layer_norm_forward);
}

void register_scale_channels() { kernels::scale_channels.set(DeviceType::cuda, scale_channels); }

}  // namespace sash::cuda
