#include "../../../ops/kernels/elementwise.h"

#include <cmath>

#include "../../../core/dispatch.h"
#include "elementwise.h"

namespace sash::cpu {
namespace {

struct Add {
  static constexpr const char* name = "add";
  static auto apply(const auto& a, const auto& b) { return a + b; }
};
struct Sub {
  static constexpr const char* name = "sub";
  static auto apply(const auto& a, const auto& b) { return a - b; }
};
struct Mul {
  static constexpr const char* name = "mul";
  static auto apply(const auto& a, const auto& b) { return a * b; }
};
struct Div {
  static constexpr const char* name = "div";
  static auto apply(const auto& a, const auto& b) { return a / b; }
};
struct Maximum {
  static constexpr const char* name = "maximum";
  static auto apply(const auto& a, const auto& b) {
    using T = typename std::decay_t<decltype(a)>::Scalar;
    return a.binaryExpr(b, Eigen::internal::scalar_max_op<T, T, Eigen::PropagateNaN>());
  }
};
struct Minimum {
  static constexpr const char* name = "minimum";
  static auto apply(const auto& a, const auto& b) {
    using T = typename std::decay_t<decltype(a)>::Scalar;
    return a.binaryExpr(b, Eigen::internal::scalar_min_op<T, T, Eigen::PropagateNaN>());
  }
};

template <class Function>
void numeric(KernelContext&, const TensorView& a, const TensorView& b, const TensorView& y) {
  dispatch_numeric(y.dtype, Function::name, [&]<class T>(TypeTag<T>) {
    elementwise<T, T, T>([](auto out, auto p, auto q) { out = Function::apply(p, q); }, y, a, b);
  });
}

template <class Function>
void floating(KernelContext&, const TensorView& a, const TensorView& b, const TensorView& y) {
  dispatch_floating(y.dtype, Function::name, [&]<class T>(TypeTag<T>) {
    elementwise<T, T, T>([](auto out, auto p, auto q) { out = Function::apply(p, q); }, y, a, b);
  });
}

void pow(KernelContext&, const TensorView& a, const TensorView& b, const TensorView& y) {
  dispatch_floating(y.dtype, "pow", [&]<class T>(TypeTag<T>) {
    for_each_block<T, T, T>(
        Order::memory,
        [](int64_t, int64_t n, T* out, const T* base, const T* exponent) {
          for (int64_t i = 0; i < n; ++i) out[i] = std::pow(base[i], exponent[i]);
        },
        y, a, b);
  });
}

}  // namespace

void register_binary() {
  kernels::add.set(DeviceType::cpu, numeric<Add>);
  kernels::sub.set(DeviceType::cpu, numeric<Sub>);
  kernels::mul.set(DeviceType::cpu, numeric<Mul>);
  kernels::div.set(DeviceType::cpu, floating<Div>);
  kernels::pow.set(DeviceType::cpu, pow);
  kernels::maximum.set(DeviceType::cpu, numeric<Maximum>);
  kernels::minimum.set(DeviceType::cpu, numeric<Minimum>);
}

}  // namespace sash::cpu
