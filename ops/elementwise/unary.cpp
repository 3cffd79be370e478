#include "unary.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "../kernels/elementwise.h"
#include "../op.h"
#include "promotion.h"
#include "slots.h"

namespace sash {

namespace kernels {
constinit Slots<UnaryKernel, op::UnaryOps> unary = make_slots<UnaryKernel>(op::UnaryOps{});
constinit decltype(clamp) clamp{"clamp"};
}  // namespace kernels

/// g where y > 0, else 0: linear in g, and flat in y.
Tensor relu_backward(const Tensor& g, const Tensor& y) {
  Tensor out = empty_like(g);
  run_kernel(kernels::slot<op::ReluBackward>(), g, y, out);
  return record("relu_backward", {g}, out, [y = save(y)](Backward& pass, const Tensor& gg) {
    return Gradients{relu_backward(gg, pass(y))};
  });
}

namespace {

/// x cast to its `result_type` with `value`, if that differs from its dtype.
std::optional<Tensor> wider(const char* op, const Tensor& x, Scalar value) {
  check_defined(op, x);
  const DType dtype = result_type(x, value);
  if (dtype != x.dtype()) return x.to(dtype);
  check_holds(op, dtype, value);
  return std::nullopt;
}

/// A bound of `clamp` in the dtype of `x`; integers saturate.
Scalar bound(const Tensor& x, std::optional<Scalar> value, double otherwise) {
  const Scalar end = value.value_or(otherwise);
  if (is_floating(x.dtype())) return end;
  const bool is_int64 = x.dtype() == DType::int64, is_int32 = x.dtype() == DType::int32;
  const int64_t least = is_int64 ? INT64_MIN : is_int32 ? INT32_MIN : 0;
  const int64_t most = is_int64 ? INT64_MAX : is_int32 ? INT32_MAX : UINT8_MAX;
  if (!end.is_integer()) return end.to_double() < 0 ? least : most;
  return std::clamp(end.to<int64_t>(), least, most);
}

/// y = kernel(x, parameters...).
template <class K, class... Parameters>
Tensor map(const K& kernel, const Tensor& x, const Parameters&... parameters) {
  Tensor y = empty_like(x);
  run_kernel(kernel, x, y, parameters...);
  return y;
}

/// The derivative of `elu` at x, recorded. It is flat where x > 0, and its own derivative
/// elsewhere.
Tensor elu_slope(const Tensor& x, double alpha) {
  return record("elu_slope", {x}, map(kernels::scalar_slot<op::EluSlope>(), x, alpha),
                [x = save(x), alpha](Backward& pass, const Tensor& g) {
                  const Tensor in = pass(x);
                  return Gradients{g * masked_fill(elu_slope(in, alpha), gt(in, 0), 0)};
                });
}

/// The op of a row, recorded with the row's derivative.
template <class Op>
Tensor unary(const Tensor& x) {
  constexpr op::UnaryRow row = Op::row;
  check_defined(row.name, x);
  if constexpr (row.dtypes == op::Dtypes::numbers) {
    check_not_bool(row.name, x);
  } else if constexpr (row.dtypes == op::Dtypes::floating) {
    check_floating(row.name, x);
  }
  const DType working = kernels::working_dtype(row.dtypes, x.dtype());
  if (working != x.dtype()) {
    const Tensor y = unary<Op>(x.to(working));
    return is_floating(working) ? y : y.to(x.dtype());
  }
  const Tensor y = map(kernels::slot<Op>(), x);
  if constexpr (row.saves == op::Saves::nothing) {
    return record(row.name, {x}, y,
                  [](Backward&, const Tensor& g) { return Gradients{Op::backward(g)}; });
  } else {
    return record(
        row.name, {x}, y,
        [saved = row.saves == op::Saves::input ? save(x) : save_output(y)](
            Backward& pass, const Tensor& g) { return Gradients{Op::backward(g, pass(saved))}; });
  }
}

}  // namespace

Tensor neg(const Tensor& x) { return unary<op::Neg>(x); }
Tensor abs(const Tensor& x) { return unary<op::Abs>(x); }
Tensor sign(const Tensor& x) {
  return x.defined() && x.dtype() == DType::boolean ? x.clone() : unary<op::Sign>(x);
}
Tensor square(const Tensor& x) {
  const bool is_bool = x.defined() && x.dtype() == DType::boolean;
  return unary<op::Square>(is_bool ? x.to(DType::int64) : x);
}
Tensor exp(const Tensor& x) { return unary<op::Exp>(x); }
Tensor log(const Tensor& x) { return unary<op::Log>(x); }
Tensor log2(const Tensor& x) { return unary<op::Log2>(x); }
Tensor log1p(const Tensor& x) { return unary<op::Log1p>(x); }
Tensor expm1(const Tensor& x) { return unary<op::Expm1>(x); }
Tensor sqrt(const Tensor& x) { return unary<op::Sqrt>(x); }
Tensor rsqrt(const Tensor& x) { return unary<op::Rsqrt>(x); }
Tensor reciprocal(const Tensor& x) { return unary<op::Reciprocal>(x); }
Tensor sin(const Tensor& x) { return unary<op::Sin>(x); }
Tensor cos(const Tensor& x) { return unary<op::Cos>(x); }
Tensor tanh(const Tensor& x) { return unary<op::Tanh>(x); }
Tensor sigmoid(const Tensor& x) { return unary<op::Sigmoid>(x); }
Tensor erf(const Tensor& x) { return unary<op::Erf>(x); }
Tensor relu(const Tensor& x) { return unary<op::Relu>(x); }
Tensor silu(const Tensor& x) { return unary<op::Silu>(x); }
Tensor softplus(const Tensor& x) { return unary<op::Softplus>(x); }
Tensor floor(const Tensor& x) { return unary<op::Floor>(x); }
Tensor ceil(const Tensor& x) { return unary<op::Ceil>(x); }
Tensor round(const Tensor& x) { return unary<op::Round>(x); }

Tensor leaky_relu(const Tensor& x, double slope) {
  check_floating("leaky_relu", x);
  return record("leaky_relu", {x}, map(kernels::scalar_slot<op::LeakyRelu>(), x, slope),
                [x = save(x), slope](Backward& pass, const Tensor& g) {
                  const auto& slopes = kernels::scalar_slot<op::LeakyReluSlope>();
                  return Gradients{g * map(slopes, pass(x).detach(), slope)};
                });
}

Tensor elu(const Tensor& x, double alpha) {
  check_floating("elu", x);
  return record("elu", {x}, map(kernels::scalar_slot<op::Elu>(), x, alpha),
                [x = save(x), alpha](Backward& pass, const Tensor& g) {
                  return Gradients{g * elu_slope(pass(x), alpha)};
                });
}

Tensor add(const Tensor& x, Scalar value) {
  if (const auto wide = wider("add", x, value)) return add(*wide, value);
  if (x.dtype() == DType::uint8) return add(x.to(DType::int32), value).to(DType::uint8);
  return record("add", {x}, map(kernels::scalar_slot<op::Add>(), x, value),
                [](Backward&, const Tensor& g) { return Gradients{g}; });
}

Tensor mul(const Tensor& x, Scalar value) {
  if (const auto wide = wider("mul", x, value)) return mul(*wide, value);
  if (x.dtype() == DType::uint8) return mul(x.to(DType::int32), value).to(DType::uint8);
  return record("mul", {x}, map(kernels::scalar_slot<op::Mul>(), x, value),
                [value](Backward&, const Tensor& g) { return Gradients{mul(g, value)}; });
}

Tensor div(const Tensor& x, Scalar value) {
  check_defined("div", x);
  if (is_integral(x.dtype())) return div(x.to(default_dtype()), value);
  return record("div", {x}, map(kernels::scalar_slot<op::Div>(), x, value),
                [value](Backward&, const Tensor& g) { return Gradients{div(g, value)}; });
}

Tensor pow(const Tensor& x, Scalar exponent) {
  check_defined("pow", x);
  const double p = exponent.to_double();
  if (is_integral(x.dtype())) {
    const DType dtype = result_type(x, exponent);
    if (is_floating(dtype)) return pow(x.to(dtype), exponent);
    if (p < 0) throw ValueError("pow", "an exponent of at least 0 for integers", to_text(p));
    if (x.dtype() != DType::int64) return pow(x.to(DType::int64), exponent).to(dtype);
  }
  return record("pow", {x}, map(kernels::scalar_slot<op::Pow>(), x, exponent),
                [x = save(x), p](Backward& pass, const Tensor& g) {
                  if (p == 0) return Gradients{zeros_like(g)};
                  return Gradients{g * (pow(pass(x), p - 1) * p)};
                });
}

Tensor clamp(const Tensor& x, std::optional<Scalar> low, std::optional<Scalar> high) {
  check_defined("clamp", x);
  if (!low && !high) throw ValueError("clamp", "a bound", "none");
  if (low && high && low->to_double() > high->to_double()) {
    throw ValueError("clamp", "low <= high",
                     to_text(low->to_double()) + " and " + to_text(high->to_double()));
  }
  for (const std::optional<Scalar>& end : {low, high}) {
    const DType dtype = end ? result_type(x, *end) : x.dtype();
    if (dtype != x.dtype()) return clamp(x.to(dtype), low, high);
  }
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const Scalar from = bound(x, low, -infinity), to = bound(x, high, infinity);
  if (x.dtype() == DType::uint8) return clamp(x.to(DType::int32), from, to).to(DType::uint8);
  if (std::isnan(from.to_double()) || std::isnan(to.to_double())) {
    const Tensor y = full(x.shape(), std::numeric_limits<double>::quiet_NaN(), x.options());
    return record("clamp", {x}, y,
                  [](Backward&, const Tensor& g) { return Gradients{zeros_like(g)}; });
  }
  return record(
      "clamp", {x}, map(kernels::clamp, x, from, to),
      [x = save(x), from, to, low, high](Backward& pass, const Tensor& g) {
        // 0 on a bound. An infinity is on none that is absent.
        const Tensor in = pass(x).detach();
        return Gradients{where(
            logical_and(low ? gt(in, from) : ge(in, from), high ? lt(in, to) : le(in, to)), g, 0)};
      });
}

}  // namespace sash
