#include "../../../ops/kernels/elementwise.h"

#include "gelu.cuh"

namespace sash::cuda {
namespace {

void gelu_forward(KernelContext& context, View x, View y, bool tanh) {
  dispatch_any_floating(x.dtype, "gelu", [&]<class T>(TypeTag<T>) {
    if (tanh) {
      compute<T, T>(context, Gelu<GeluByTanh>{}, y, x);
    } else {
      compute<T, T>(context, Gelu<ExactGelu>{}, y, x);
    }
  });
}

void gelu_backward(KernelContext& context, View x, View g, View dx, bool tanh) {
  dispatch_any_floating(x.dtype, "gelu", [&]<class T>(TypeTag<T>) {
    if (tanh) {
      compute<T, T, T>(context, GeluGradient<GeluByTanh>{}, dx, x, g);
    } else {
      compute<T, T, T>(context, GeluGradient<ExactGelu>{}, dx, x, g);
    }
  });
}

}  // namespace

void register_gelu() {
  kernels::gelu_forward.set(DeviceType::cuda, gelu_forward);
  kernels::gelu_backward.set(DeviceType::cuda, gelu_backward);
}

}  // namespace sash::cuda
