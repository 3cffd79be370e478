#include "../../../ops/kernels/elementwise.h"

#include <cmath>
#include <functional>
#include <type_traits>

#include "../../../core/dispatch.h"
#include "elementwise.h"

namespace sash::cpu {
namespace {

/// `x`, or the float32 it stands for.
template <class T>
auto number(T x) {
  if constexpr (sizeof(T) == 2) {
    return static_cast<float>(x);
  } else {
    return x;
  }
}

template <class Relation>
void compare(KernelContext&, const TensorView& a, const TensorView& b, const TensorView& y) {
  dispatch_all(a.dtype, "compare", [&]<class T>(TypeTag<T>) {
    for_each_block<bool, T, T>(
        Order::memory,
        [](int64_t, int64_t n, bool* out, const T* p, const T* q) {
          for (int64_t i = 0; i < n; ++i) out[i] = Relation{}(number(p[i]), number(q[i]));
        },
        y, a, b);
  });
}

template <class Relation>
void compare_scalar(KernelContext&, const TensorView& x, const TensorView& y, const Scalar& value) {
  dispatch_all(x.dtype, "compare", [&]<class T>(TypeTag<T>) {
    using Wide = std::conditional_t<std::is_integral_v<T>, int64_t, T>;
    const auto other = number(value.to<Wide>());
    for_each_block<bool, T>(
        Order::memory,
        [other](int64_t, int64_t n, bool* out, const T* in) {
          for (int64_t i = 0; i < n; ++i) {
            out[i] = Relation{}(number(static_cast<Wide>(in[i])), other);
          }
        },
        y, x);
  });
}

void logical_and(KernelContext&, const TensorView& a, const TensorView& b, const TensorView& y) {
  elementwise<bool, bool, bool>([](auto out, auto p, auto q) { out = p && q; }, y, a, b);
}

void logical_or(KernelContext&, const TensorView& a, const TensorView& b, const TensorView& y) {
  elementwise<bool, bool, bool>([](auto out, auto p, auto q) { out = p || q; }, y, a, b);
}

void logical_not(KernelContext&, const TensorView& x, const TensorView& y) {
  elementwise<bool, bool>([](auto out, auto in) { out = !in; }, y, x);
}

void isnan(KernelContext&, const TensorView& x, const TensorView& y) {
  sash::detail::dispatch_over<float, double, float16, bfloat16>(
      x.dtype, "isnan", [&]<class T>(TypeTag<T>) {
        for_each_block<bool, T>(
            Order::memory,
            [](int64_t, int64_t n, bool* out, const T* in) {
              for (int64_t i = 0; i < n; ++i) out[i] = std::isnan(number(in[i]));
            },
            y, x);
      });
}

}  // namespace

void register_compare() {
  constexpr auto cpu = DeviceType::cpu;
  kernels::eq.set(cpu, compare<std::equal_to<>>);
  kernels::ne.set(cpu, compare<std::not_equal_to<>>);
  kernels::lt.set(cpu, compare<std::less<>>);
  kernels::le.set(cpu, compare<std::less_equal<>>);
  kernels::gt.set(cpu, compare<std::greater<>>);
  kernels::ge.set(cpu, compare<std::greater_equal<>>);
  kernels::eq_scalar.set(cpu, compare_scalar<std::equal_to<>>);
  kernels::ne_scalar.set(cpu, compare_scalar<std::not_equal_to<>>);
  kernels::lt_scalar.set(cpu, compare_scalar<std::less<>>);
  kernels::le_scalar.set(cpu, compare_scalar<std::less_equal<>>);
  kernels::gt_scalar.set(cpu, compare_scalar<std::greater<>>);
  kernels::ge_scalar.set(cpu, compare_scalar<std::greater_equal<>>);
  kernels::logical_and.set(cpu, logical_and);
  kernels::logical_or.set(cpu, logical_or);
  kernels::logical_not.set(cpu, logical_not);
  kernels::isnan.set(cpu, isnan);
}

}  // namespace sash::cpu
