#include "compare.h"

#include "../kernels/elementwise.h"
#include "../op.h"
#include "promotion.h"
#include "slots.h"

namespace sash {

namespace kernels {
constinit Slots<BinaryKernel, op::CompareOps> compare = make_slots<BinaryKernel>(op::CompareOps{});
constinit Slots<ScalarKernel, op::CompareOps> compare_scalar =
    make_slots<ScalarKernel>(op::CompareOps{});
}  // namespace kernels

namespace {

/// y = Op(x...), as bool.
template <class Op>
Tensor test(const Shape& shape, const Tensor& first, const auto&... rest) {
  const Tensor y = empty(shape, {.dtype = DType::boolean, .device = first.device()});
  run_kernel(kernels::slot<Op>(), first, rest.tensor_view()..., y);
  return y;
}

template <class Op>
Tensor compare(const Tensor& a, const Tensor& b) {
  check_defined_together(Op::row.name, a, b);
  const Shape shape = broadcast_shapes(a.shape(), b.shape(), Op::row.name);
  if (a.dtype() == b.dtype()) return test<Op>(shape, a, b);
  const NoGradGuard no_grad;
  const DType dtype = result_type(a, b);
  return test<Op>(shape, a.to(dtype), b.to(dtype));
}

template <class Op>
Tensor compare(const Tensor& x, Scalar value) {
  check_defined(Op::row.name, x);
  if (is_integral(x.dtype()) && !value.is_integer()) {
    const NoGradGuard no_grad;
    return compare<Op>(x.to(result_type(x, value)), value);
  }
  const Tensor y = empty(x.shape(), {.dtype = DType::boolean, .device = x.device()});
  run_kernel(kernels::scalar_slot<Op>(), x, y, value);
  return y;
}

template <class Op>
Tensor logical(const Tensor& a, const Tensor& b) {
  check_compatible(Op::row.name, a, b);
  check_dtype(Op::row.name, a, DType::boolean);
  return test<Op>(broadcast_shapes(a.shape(), b.shape(), Op::row.name), a, b);
}

template <class Op>
Tensor test_floating(const Tensor& x) {
  check_floating(Op::row.name, x);
  return test<Op>(x.shape(), x);
}

}  // namespace

Tensor eq(const Tensor& a, const Tensor& b) { return compare<op::Eq>(a, b); }
Tensor ne(const Tensor& a, const Tensor& b) { return compare<op::Ne>(a, b); }
Tensor lt(const Tensor& a, const Tensor& b) { return compare<op::Lt>(a, b); }
Tensor le(const Tensor& a, const Tensor& b) { return compare<op::Le>(a, b); }
Tensor gt(const Tensor& a, const Tensor& b) { return compare<op::Gt>(a, b); }
Tensor ge(const Tensor& a, const Tensor& b) { return compare<op::Ge>(a, b); }

Tensor eq(const Tensor& x, Scalar value) { return compare<op::Eq>(x, value); }
Tensor ne(const Tensor& x, Scalar value) { return compare<op::Ne>(x, value); }
Tensor lt(const Tensor& x, Scalar value) { return compare<op::Lt>(x, value); }
Tensor le(const Tensor& x, Scalar value) { return compare<op::Le>(x, value); }
Tensor gt(const Tensor& x, Scalar value) { return compare<op::Gt>(x, value); }
Tensor ge(const Tensor& x, Scalar value) { return compare<op::Ge>(x, value); }

Tensor logical_and(const Tensor& a, const Tensor& b) { return logical<op::LogicalAnd>(a, b); }
Tensor logical_or(const Tensor& a, const Tensor& b) { return logical<op::LogicalOr>(a, b); }

Tensor logical_not(const Tensor& x) {
  check_defined("logical_not", x);
  check_dtype("logical_not", x, DType::boolean);
  return test<op::LogicalNot>(x.shape(), x);
}

Tensor isnan(const Tensor& x) { return test_floating<op::IsNan>(x); }
Tensor isfinite(const Tensor& x) { return test_floating<op::IsFinite>(x); }
Tensor isinf(const Tensor& x) { return test_floating<op::IsInf>(x); }

Tensor isclose(const Tensor& a, const Tensor& b, const CloseOptions& options) {
  constexpr const char* op = "isclose";
  check_compatible(op, a, b);
  check_not_negative(op, "rtol", options.rtol);
  check_not_negative(op, "atol", options.atol);
  static_cast<void>(broadcast_shapes(a.shape(), b.shape(), op));
  const NoGradGuard no_grad;
  if (is_integral(a.dtype()) || is_half(a.dtype())) {
    return isclose(a.to(DType::float64), b.to(DType::float64), options);
  }
  const Tensor distance = abs(a - b), allowed = abs(b) * options.rtol + options.atol;
  const Tensor close = logical_or(eq(a, b), logical_and(isfinite(distance), le(distance, allowed)));
  return options.equal_nan ? logical_or(close, logical_and(isnan(a), isnan(b))) : close;
}

bool allclose(const Tensor& a, const Tensor& b, const CloseOptions& options) {
  return all(isclose(a, b, options)).item<bool>();
}

}  // namespace sash
