#include "binary.h"

#include "../kernels/elementwise.h"
#include "../op.h"
#include "promotion.h"
#include "slots.h"

namespace sash {

namespace kernels {
constinit Slots<BinaryKernel, op::ArithmeticOps> arithmetic =
    make_slots<BinaryKernel>(op::ArithmeticOps{});
constinit Slots<ScalarKernel, op::ScalarOps> arithmetic_scalar =
    make_slots<ScalarKernel>(op::ScalarOps{});
}  // namespace kernels

namespace {

/// What a row's `backward` fills: gradients of the operands that need them, summed to their shapes.
struct OperandGradients {
  Backward& pass;
  const Shape& a_shape;
  const Shape& b_shape;
  Gradients grads{2};

  void a(auto&& f) {
    if (pass.needs(0)) grads[0] = sum_to(f(), a_shape);
  }
  void b(auto&& f) {
    if (pass.needs(1)) grads[1] = sum_to(f(), b_shape);
  }
  void minus_b(auto&& f) {
    if (pass.needs(1)) grads[1] = neg(sum_to(f(), b_shape));
  }
};

/// Whether the gradients that are wanted read an operand.
template <class Op>
bool reads(bool op::Reads::*operand, bool a_wanted, bool b_wanted) {
  return (a_wanted && Op::row.a_gradient.*operand) || (b_wanted && Op::row.b_gradient.*operand);
}

/// Sums and maxima of bool are "or", products and minima "and"; there are no others.
template <class Op>
Tensor of_bool(const Tensor& a, const Tensor& b) {
  static_cast<void>(broadcast_shapes(a.shape(), b.shape(), Op::row.name));
  if constexpr (op::List<op::Add, op::Maximum>::has<Op>) return logical_or(a, b);
  if constexpr (op::List<op::Mul, op::Minimum>::has<Op>) return logical_and(a, b);
  throw DTypeError(Op::row.name, "a dtype of numbers", name(DType::boolean));
}

/// The op of a row, recorded with the row's derivative.
template <class Op>
Tensor binary(const Tensor& a, const Tensor& b) {
  constexpr op::BinaryRow row = Op::row;
  check_defined_together(row.name, a, b);
  const DType dtype = result_type(a, b);
  if (row.dtypes != op::Dtypes::cast_to_floating && dtype == DType::boolean) {
    return of_bool<Op>(a, b);
  }
  const DType working = kernels::working_dtype(row.dtypes, dtype);
  if (a.dtype() != working || b.dtype() != working) {
    static_cast<void>(broadcast_shapes(a.shape(), b.shape(), row.name));  // throws before any work
    // An operand without axes may be of a wider dtype: it wraps first.
    const auto cast = [&](const Tensor& x) {
      return is_floating(working) ? x.to(working) : x.to(dtype).to(working);
    };
    const Tensor y = binary<Op>(cast(a), cast(b));
    return is_floating(working) ? y : y.to(dtype);
  }
  Tensor y = empty(broadcast_shapes(a.shape(), b.shape(), row.name), a.options());
  run_kernel(kernels::slot<Op>(), a, b, y);
  const bool a_wanted = a.requires_grad(), b_wanted = b.requires_grad();
  return record(row.name, {a, b}, y,
                [a_shape = a.shape(), b_shape = b.shape(),
                 a = save_if(reads<Op>(&op::Reads::a, a_wanted, b_wanted), a),
                 b = save_if(reads<Op>(&op::Reads::b, a_wanted, b_wanted), b)](Backward& pass,
                                                                               const Tensor& g) {
                  const auto unpack = [&](bool op::Reads::*operand, const Saved& saved) {
                    const bool needed = reads<Op>(operand, pass.needs(0), pass.needs(1));
                    return needed ? pass(saved) : Tensor();
                  };
                  OperandGradients to{pass, a_shape, b_shape};
                  Op::backward(to, g, unpack(&op::Reads::a, a), unpack(&op::Reads::b, b));
                  return to.grads;
                });
}

/// The `result_type` of x and `value`, after checks of both.
DType checked_type(const char* op, const Tensor& x, Scalar value) {
  check_defined(op, x);
  const DType dtype = result_type(x, value);
  check_holds(op, dtype, value);
  return dtype;
}

/// The scalar as a 0-dimensional tensor of the dtype that it has beside x.
Tensor beside(const char* op, Scalar value, const Tensor& x) {
  return scalar_tensor(value, {.dtype = checked_type(op, x, value), .device = x.device()});
}

/// A row that divides, with a scalar as divisor.
template <class Op>
Tensor with_divisor(const Tensor& x, Scalar value) {
  const char* op = Op::row.name;
  check_defined(op, x);
  const DType dtype = result_type(x, value);
  if (dtype != x.dtype()) return with_divisor<Op>(x.to(dtype), value);
  check_holds(op, dtype, value);
  if (is_integral(dtype) && value.to_double() == 0) {
    throw ValueError(op, "a divisor other than 0", "0");
  }
  if (dtype == DType::uint8) return with_divisor<Op>(x.to(DType::int32), value).to(dtype);
  const Tensor y = empty_like(x);
  run_kernel(kernels::scalar_slot<Op>(), x, y, value);
  constexpr bool flat = std::is_same_v<Op, op::FloorDivide>;
  return record(op, {x}, y,
                [](Backward&, const Tensor& g) { return Gradients{flat ? zeros_like(g) : g}; });
}

}  // namespace

Tensor add(const Tensor& a, const Tensor& b) { return binary<op::Add>(a, b); }
Tensor sub(const Tensor& a, const Tensor& b) { return binary<op::Sub>(a, b); }
Tensor mul(const Tensor& a, const Tensor& b) { return binary<op::Mul>(a, b); }
Tensor div(const Tensor& a, const Tensor& b) { return binary<op::Div>(a, b); }
Tensor pow(const Tensor& a, const Tensor& b) { return binary<op::Pow>(a, b); }
Tensor maximum(const Tensor& a, const Tensor& b) { return binary<op::Maximum>(a, b); }
Tensor minimum(const Tensor& a, const Tensor& b) { return binary<op::Minimum>(a, b); }
Tensor atan2(const Tensor& a, const Tensor& b) { return binary<op::Atan2>(a, b); }
Tensor remainder(const Tensor& a, const Tensor& b) { return binary<op::Remainder>(a, b); }
Tensor floor_divide(const Tensor& a, const Tensor& b) { return binary<op::FloorDivide>(a, b); }

Tensor sub(const Tensor& a, Scalar b) {
  const DType dtype = checked_type("sub", a, b);
  return add(a.to(dtype), negated(dtype, b));
}
Tensor sub(Scalar a, const Tensor& b) { return add(neg(b.to(checked_type("sub", b, a))), a); }
Tensor div(Scalar a, const Tensor& b) {
  check_defined("div", b);
  // A half may not hold the scalar.
  if (is_half(b.dtype())) return div(a, b.to(DType::float32)).to(b.dtype());
  const DType dtype = is_integral(b.dtype()) ? default_dtype() : b.dtype();
  return div(scalar_tensor(a, {.dtype = dtype, .device = b.device()}), b.to(dtype));
}
Tensor pow(Scalar a, const Tensor& b) { return binary<op::Pow>(beside("pow", a, b), b); }
Tensor maximum(const Tensor& a, Scalar b) {
  return binary<op::Maximum>(a, beside("maximum", b, a));
}
Tensor minimum(const Tensor& a, Scalar b) {
  return binary<op::Minimum>(a, beside("minimum", b, a));
}
Tensor remainder(const Tensor& a, Scalar b) { return with_divisor<op::Remainder>(a, b); }
Tensor remainder(Scalar a, const Tensor& b) {
  return binary<op::Remainder>(beside("remainder", a, b), b);
}
Tensor floor_divide(const Tensor& a, Scalar b) { return with_divisor<op::FloorDivide>(a, b); }

}  // namespace sash
