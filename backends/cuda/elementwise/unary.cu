#include "table.cuh"

namespace sash::cuda {
namespace {

struct Identity {
  __device__ auto operator()(auto x) const { return x; }
};
struct Cube {
  __device__ auto operator()(auto x) const { return x * x * x; }
};

/// Exponents for which there is a faster formula than pow.
void pow_scalar(KernelContext& context, View x, View y, const Scalar& value) {
  const double exponent = value.to_double();
  if (exponent == 2) return unary<op::Square>(context, x, y);
  if (exponent == 0.5) return unary<op::Sqrt>(context, x, y);
  if (exponent == -1) return unary<op::Reciprocal>(context, x, y);
  if (exponent != 1 && exponent != 3) return scalar<op::Pow>(context, x, y, value);
  dispatch<op::Pow>(y.dtype, [&]<class T>(TypeTag<T>) {
    if (exponent == 1) {
      compute<T, T>(context, Identity{}, y, x);
    } else {
      compute<T, T>(context, Cube{}, y, x);
    }
  });
}

void clamp(KernelContext& context, View x, View y, const Scalar& low, const Scalar& high) {
  dispatch_any_numeric(y.dtype, "clamp", [&]<class T>(TypeTag<T>) {
    const op::Clamp<operand_t<T>> f{operand<T>(low), operand<T>(high)};
    compute<T, T>(context, f, y, x);
  });
}

}  // namespace

void register_unary() {
  constexpr auto cuda = DeviceType::cuda;
  op::UnaryOps::for_each([]<class Op>(Op) { kernels::slot<Op>().set(cuda, unary<Op>); });
  op::ScalarOps::for_each([]<class Op>(Op) { kernels::scalar_slot<Op>().set(cuda, scalar<Op>); });
  kernels::scalar_slot<op::Pow>().set(cuda, pow_scalar);
  kernels::clamp.set(cuda, clamp);
}

}  // namespace sash::cuda
