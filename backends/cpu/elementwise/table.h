#pragma once

#include <unsupported/Eigen/SpecialFunctions>

#include <limits>

#include "../../../ops/kernels/elementwise.h"
#include "elementwise.h"

/// The kernels of the table's rows. A formula runs on Eigen arrays, unless the row is listed here.
namespace sash::cpu {

/// Rows whose formula is for single elements, or whose function in Eigen is not exact: its square
/// root makes NaN of infinity.
using ByElement = op::List<op::Sign, op::Sqrt, op::Rsqrt, op::IsNan, op::IsFinite, op::Pow,
                           op::Remainder, op::FloorDivide, op::ReluBackward>;

template <class Op>
inline constexpr bool kByElement = ByElement::has<Op> || op::CompareOps::has<Op>;
template <class Op, class T>
inline constexpr bool kByElement<op::WithScalar<Op, T>> = kByElement<Op>;
template <class T>
inline constexpr bool kByElement<op::Clamp<T>> = true;

/// out = f(x...) for one block; `out` may be the same memory as an operand.
template <class F>
void evaluate(F f, auto& out, const auto&... x) {
  out = f(x...);
}

/// Eigen's exp stops at a subnormal number for x far below 0; there the result is 0.
template <class X>
void evaluate(op::Exp f, auto& out, const X& x) {
  using T = typename X::Scalar;
  out = f(x);
  for (Eigen::Index i = 0; i < out.size(); ++i) {
    out[i] = out[i] < std::numeric_limits<T>::min() ? T(0) : out[i];
  }
}

template <class X>
void evaluate(op::Relu, auto& out, const X& x) {
  using T = typename X::Scalar;
  const auto zero = Eigen::Array<T, Eigen::Dynamic, 1>::Constant(x.size(), T(0));
  out = x.binaryExpr(zero, Eigen::internal::scalar_max_op<T, T, Eigen::PropagateNaN>());
}

template <class X>
void evaluate(op::Softplus, auto& out, const X& x) {
  using T = typename X::Scalar;
  const auto zero = Eigen::Array<T, Eigen::Dynamic, 1>::Constant(x.size(), T(0));
  out = log1p(exp(-abs(x))) +
        x.binaryExpr(zero, Eigen::internal::scalar_max_op<T, T, Eigen::PropagateNaN>());
}

template <class X>
void evaluate(op::Maximum, auto& out, const X& a, const X& b) {
  using T = typename X::Scalar;
  out = a.binaryExpr(b, Eigen::internal::scalar_max_op<T, T, Eigen::PropagateNaN>());
}

template <class X>
void evaluate(op::Minimum, auto& out, const X& a, const X& b) {
  using T = typename X::Scalar;
  out = a.binaryExpr(b, Eigen::internal::scalar_min_op<T, T, Eigen::PropagateNaN>());
}

/// An element as a number: the halves are read as float32.
template <class T>
auto widen(T x) {
  if constexpr (std::is_same_v<T, float16> || std::is_same_v<T, bfloat16>) {
    return static_cast<float>(x);
  } else {
    return x;
  }
}

/// y = f(x...), with elements of the types `Out` and `In`.
template <class Out, class... In, class F, class... Views>
void run(F f, const TensorView& y, const Views&... x) {
  if constexpr (kByElement<F>) {
    for_each_block<Out, In...>(
        Order::memory,
        [f](int64_t, int64_t n, Out* out, const In*... in) {
          const F local = f;  // which no write to `out` can change, so that the loop vectorises
          for (int64_t i = 0; i < n; ++i) out[i] = local(widen(in[i])...);
        },
        y, x...);
  } else {
    elementwise<Out, In...>([f](auto out, auto... in) { evaluate(f, out, in...); }, y, x...);
  }
}

/// Calls `f` with the element type of a row's operands. The halves are only compared and tested.
template <class Op, class F>
void dispatch(DType dtype, F&& f) {
  constexpr op::UnaryRow row{Op::row.name, Op::row.dtypes};
  if constexpr (row.dtypes == op::Dtypes::all) {
    dispatch_all(dtype, row.name, f);
  } else if constexpr (row.dtypes == op::Dtypes::boolean) {
    f(TypeTag<bool>{});
  } else if constexpr (row.dtypes == op::Dtypes::numbers) {
    dispatch_numeric(dtype, row.name, f);
  } else if constexpr (op::is_predicate<Op>()) {
    sash::detail::dispatch_over<float, double, float16, bfloat16>(dtype, row.name, f);
  } else {
    dispatch_floating(dtype, row.name, f);
  }
}

template <class Op>
void unary(KernelContext&, const TensorView& x, const TensorView& y) {
  dispatch<Op>(x.dtype, [&]<class T>(TypeTag<T>) { run<op::result_t<Op, T>, T>(Op{}, y, x); });
}

template <class Op>
void binary(KernelContext&, const TensorView& a, const TensorView& b, const TensorView& y) {
  dispatch<Op>(a.dtype,
               [&]<class T>(TypeTag<T>) { run<op::result_t<Op, T>, T, T>(Op{}, y, a, b); });
}

template <class Op>
void scalar(KernelContext&, const TensorView& x, const TensorView& y, const Scalar& value) {
  dispatch<Op>(x.dtype, [&]<class T>(TypeTag<T>) {
    using V = std::conditional_t<op::is_predicate<Op>() && std::is_integral_v<T>, int64_t, T>;
    const auto other = widen(value.to<V>());
    run<op::result_t<Op, T>, T>(op::WithScalar<Op, std::decay_t<decltype(other)>>{other}, y, x);
  });
}

}  // namespace sash::cpu
