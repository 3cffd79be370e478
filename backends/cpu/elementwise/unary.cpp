#include "../shape/in_float.h"
#include "table.h"

namespace sash::cpu {
namespace {

/// Exponents for which there is a faster formula than pow.
void pow_scalar(KernelContext& context, const TensorView& x, const TensorView& y,
                const Scalar& value) {
  const double exponent = value.to_double();
  if (exponent == 2) return unary<op::Square>(context, x, y);
  if (exponent == 0.5) return unary<op::Sqrt>(context, x, y);
  if (exponent == -1) return unary<op::Reciprocal>(context, x, y);
  dispatch_floating(y.dtype, "pow", [&]<class T>(TypeTag<T>) {
    const T p = static_cast<T>(exponent);
    if (p == T(1)) return run<T, T>([](const auto& in) { return in; }, y, x);
    if (p == T(3)) return run<T, T>([](const auto& in) { return in * in * in; }, y, x);
    run<T, T>(op::WithScalar<op::Pow, T>{p}, y, x);
  });
}

void clamp(KernelContext&, const TensorView& x, const TensorView& y, const Scalar& low,
           const Scalar& high) {
  dispatch_numeric(y.dtype, "clamp", [&]<class T>(TypeTag<T>) {
    run<T, T>(op::Clamp<T>{low.to<T>(), high.to<T>()}, y, x);
  });
}

}  // namespace

void register_unary() {
  op::UnaryOps::for_each([]<class Op>(Op) {
    kernels::slot<Op>().set(DeviceType::cpu, in_float_by_elements<unary<Op>, 1>);
  });
  op::ScalarOps::for_each([]<class Op>(Op) {
    kernels::scalar_slot<Op>().set(DeviceType::cpu, in_float_by_elements<scalar<Op>, 1>);
  });
  kernels::scalar_slot<op::Pow>().set(DeviceType::cpu, in_float_by_elements<pow_scalar, 1>);
  kernels::clamp.set(DeviceType::cpu, in_float_by_elements<clamp, 1>);
}

}  // namespace sash::cpu
