#include "../../../ops/kernels/elementwise.h"

#include "../../../core/backend/dispatch.h"
#include "elementwise.h"
#include "gelu.h"

namespace sash::cpu {
namespace {

/// y = f(x...) on vectors of 16 elements, halves in float32.
template <class T, class F, class... Views>
void by_lanes(F f, View y, const Views&... x) {
  const auto block = [f](int64_t, int64_t n, T* out, const auto*... in) {
    for_lanes(n, [&](int64_t i, auto lanes) { store(out + i, lanes, f(load(in + i, lanes)...)); });
  };
  if constexpr (sizeof...(Views) == 1) {
    for_each_block<T, T>(Order::memory, block, y, x...);
  } else {
    for_each_block<T, T, T>(Order::memory, block, y, x...);
  }
}

void gelu_forward(KernelContext&, View x, View y, bool tanh) {
  dispatch_with_halves(x.dtype, "gelu", [&]<class T>(TypeTag<T>) {
    using Vector = Lanes<compute_t<T>>;
    if (tanh) {
      by_lanes<T>([](const Vector& z) { return z * tanh_cdf(z); }, y, x);
    } else {
      by_lanes<T>([](const Vector& z) { return z * normal_cdf(z); }, y, x);
    }
  });
}

void gelu_backward(KernelContext&, View x, View g, View dx, bool tanh) {
  dispatch_with_halves(x.dtype, "gelu", [&]<class T>(TypeTag<T>) {
    using Vector = Lanes<compute_t<T>>;
    if (tanh) {
      by_lanes<T>(
          [](const Vector& z, const Vector& grad) {
            const Vector p = tanh_cdf(z);
            return grad * (p + tanh_slope(z, p));
          },
          dx, x, g);
    } else {
      by_lanes<T>([](const Vector& z,
                     const Vector& grad) { return grad * (normal_cdf(z) + normal_slope(z)); },
                  dx, x, g);
    }
  });
}

}  // namespace

void register_gelu() {
  kernels::gelu_forward.set(DeviceType::cpu, gelu_forward);
  kernels::gelu_backward.set(DeviceType::cpu, gelu_backward);
}

}  // namespace sash::cpu
