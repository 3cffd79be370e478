#include "table.h"

namespace sash::cpu {
namespace {

/// Exponents for which there is a faster formula than pow.
void pow_scalar(KernelContext& context, View x, View y, const Scalar& value) {
  const double exponent = value.to_double();
  if (exponent == 2) return unary<op::Square>(context, x, y);
  if (exponent == 0.5) return unary<op::Sqrt>(context, x, y);
  if (exponent == -1) return unary<op::Reciprocal>(context, x, y);
  dispatch<op::Pow>(y.dtype, [&]<class T>(TypeTag<T>) {
    const auto p = value.to<compute_t<T>>();
    if (p == 1) return run<T, T>([](const auto& in) { return in; }, y, x);
    if (p == 3) return run<T, T>([](const auto& in) { return in * in * in; }, y, x);
    run<T, T>(op::WithScalar<op::Pow, compute_t<T>>{p}, y, x);
  });
}

void clamp(KernelContext&, View x, View y, const Scalar& low, const Scalar& high) {
  dispatch<op::Maximum>(y.dtype, [&]<class T>(TypeTag<T>) {
    using V = compute_t<T>;
    run<T, T>(op::Clamp<V>{low.to<V>(), high.to<V>()}, y, x);
  });
}

}  // namespace

void register_unary() {
  op::UnaryOps::for_each([]<class Op>(Op) { kernels::slot<Op>().set(DeviceType::cpu, unary<Op>); });
  op::ScalarOps::for_each(
      []<class Op>(Op) { kernels::scalar_slot<Op>().set(DeviceType::cpu, scalar<Op>); });
  kernels::scalar_slot<op::Pow>().set(DeviceType::cpu, pow_scalar);
  kernels::clamp.set(DeviceType::cpu, clamp);
}

}  // namespace sash::cpu
