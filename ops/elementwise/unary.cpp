#include "unary.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "../../tensor/autograd/node.h"
#include "../../tensor/factories.h"
#include "../checks.h"
#include "../kernels/elementwise.h"
#include "binary.h"
#include "compare.h"
#include "promotion.h"
#include "where.h"

namespace sash {

namespace kernels {
constinit UnaryKernel neg{"neg"};
constinit UnaryKernel abs{"abs"};
constinit UnaryKernel sign{"sign"};
constinit UnaryKernel square{"square"};
constinit ScalarKernel add_scalar{"add_scalar"};
constinit ScalarKernel mul_scalar{"mul_scalar"};
constinit ScalarKernel div_scalar{"div_scalar"};
constinit Kernel<void(KernelContext&, const TensorView&, const TensorView&, const Scalar&,
                      const Scalar&)>
    clamp{"clamp"};
constinit UnaryKernel exp{"exp"};
constinit UnaryKernel log{"log"};
constinit UnaryKernel log1p{"log1p"};
constinit UnaryKernel expm1{"expm1"};
constinit UnaryKernel sqrt{"sqrt"};
constinit UnaryKernel rsqrt{"rsqrt"};
constinit UnaryKernel reciprocal{"reciprocal"};
constinit UnaryKernel sin{"sin"};
constinit UnaryKernel cos{"cos"};
constinit UnaryKernel tanh{"tanh"};
constinit UnaryKernel sigmoid{"sigmoid"};
constinit UnaryKernel erf{"erf"};
constinit UnaryKernel relu{"relu"};
constinit UnaryKernel silu{"silu"};
constinit UnaryKernel floor{"floor"};
constinit ScalarKernel pow_scalar{"pow_scalar"};
constinit Kernel<void(KernelContext&, const TensorView&, const TensorView&, const TensorView&)>
    relu_backward{"relu_backward"};
}  // namespace kernels

namespace {

void check_numeric(const char* op, const Tensor& x) {
  check_defined(op, x);
  if (x.dtype() == DType::uint8 || x.dtype() == DType::boolean) {
    throw DTypeError(op, "a floating dtype, int32 or int64", name(x.dtype()));
  }
}

/// Whether the function needs x in a floating dtype first.
bool whole(const char* op, const Tensor& x) {
  check_defined(op, x);
  return is_integral(x.dtype());
}

void check_real(const char* op, const Tensor& x) {
  check_defined(op, x);
  check_floating(op, x);
}

/// x in the dtype that it has with `value`, if that is another.
std::optional<Tensor> promoted(const char* op, const Tensor& x, Scalar value) {
  check_defined(op, x);
  const DType dtype = result_type(x, value);
  if (dtype != x.dtype()) return x.to(dtype);
  check_numeric(op, x);
  check_holds(op, dtype, value);
  return std::nullopt;
}

/// A bound of `clamp` in the dtype of `x`: integers stop at the ends of theirs.
Scalar bound(const Tensor& x, std::optional<Scalar> value, double otherwise) {
  const Scalar end = value.value_or(otherwise);
  if (is_floating(x.dtype())) return end;
  const bool is_int32 = x.dtype() == DType::int32;
  const int64_t least =
      is_int32 ? std::numeric_limits<int32_t>::min() : std::numeric_limits<int64_t>::min();
  const int64_t most =
      is_int32 ? std::numeric_limits<int32_t>::max() : std::numeric_limits<int64_t>::max();
  if (!end.is_integer()) return end.to_double() < 0 ? least : most;
  return std::clamp(end.to<int64_t>(), least, most);
}

/// y = kernel(x, parameters...).
template <class K, class... Parameters>
Tensor map(const K& kernel, const Tensor& x, const Parameters&... parameters) {
  Tensor y = empty_like(x);
  KernelContext context = kernel_context(x.device());
  kernel(context, x.tensor_view(), y.tensor_view(), parameters...);
  return y;
}

/// g where y > 0, else 0: linear in g, and flat in y.
Tensor relu_backward(const Tensor& g, const Tensor& y) {
  Tensor out = empty_like(g);
  KernelContext context = kernel_context(g.device());
  kernels::relu_backward(context, g.tensor_view(), y.tensor_view(), out.tensor_view());
  return record("relu_backward", {g}, out, [y = save(y)](Backward& pass, const Tensor& gg) {
    return Gradients{relu_backward(gg, pass(y))};
  });
}

}  // namespace

Tensor neg(const Tensor& x) {
  check_numeric("neg", x);
  return record("neg", {x}, map(kernels::neg, x),
                [](Backward&, const Tensor& g) { return Gradients{neg(g)}; });
}

Tensor Tensor::operator-() const { return neg(*this); }

Tensor abs(const Tensor& x) {
  check_numeric("abs", x);
  return record("abs", {x}, map(kernels::abs, x), [x = save(x)](Backward& pass, const Tensor& g) {
    return Gradients{g * sign(pass(x))};
  });
}

Tensor sign(const Tensor& x) {
  check_numeric("sign", x);
  return record("sign", {x}, map(kernels::sign, x),
                [](Backward&, const Tensor& g) { return Gradients{zeros_like(g)}; });
}

Tensor square(const Tensor& x) {
  check_numeric("square", x);
  return record(
      "square", {x}, map(kernels::square, x),
      [x = save(x)](Backward& pass, const Tensor& g) { return Gradients{g * (pass(x) * 2)}; });
}

Tensor exp(const Tensor& x) {
  if (whole("exp", x)) return exp(x.to(default_dtype()));
  Tensor y = map(kernels::exp, x);
  return record("exp", {x}, y, [y = save_output(y)](Backward& pass, const Tensor& g) {
    return Gradients{g * pass(y)};
  });
}

Tensor log(const Tensor& x) {
  if (whole("log", x)) return log(x.to(default_dtype()));
  return record("log", {x}, map(kernels::log, x),
                [x = save(x)](Backward& pass, const Tensor& g) { return Gradients{g / pass(x)}; });
}

Tensor log1p(const Tensor& x) {
  if (whole("log1p", x)) return log1p(x.to(default_dtype()));
  return record(
      "log1p", {x}, map(kernels::log1p, x),
      [x = save(x)](Backward& pass, const Tensor& g) { return Gradients{g / (pass(x) + 1)}; });
}

Tensor expm1(const Tensor& x) {
  if (whole("expm1", x)) return expm1(x.to(default_dtype()));
  Tensor y = map(kernels::expm1, x);
  return record("expm1", {x}, y, [y = save_output(y)](Backward& pass, const Tensor& g) {
    return Gradients{g * (pass(y) + 1)};
  });
}

Tensor sqrt(const Tensor& x) {
  if (whole("sqrt", x)) return sqrt(x.to(default_dtype()));
  Tensor y = map(kernels::sqrt, x);
  return record("sqrt", {x}, y, [y = save_output(y)](Backward& pass, const Tensor& g) {
    return Gradients{g / (pass(y) * 2)};
  });
}

Tensor rsqrt(const Tensor& x) {
  if (whole("rsqrt", x)) return rsqrt(x.to(default_dtype()));
  Tensor y = map(kernels::rsqrt, x);
  return record("rsqrt", {x}, y, [y = save_output(y)](Backward& pass, const Tensor& g) {
    return Gradients{g * (pow(pass(y), 3) * -0.5)};
  });
}

Tensor reciprocal(const Tensor& x) {
  if (whole("reciprocal", x)) return reciprocal(x.to(default_dtype()));
  Tensor y = map(kernels::reciprocal, x);
  return record("reciprocal", {x}, y, [y = save_output(y)](Backward& pass, const Tensor& g) {
    return Gradients{neg(g * square(pass(y)))};
  });
}

Tensor sin(const Tensor& x) {
  if (whole("sin", x)) return sin(x.to(default_dtype()));
  return record("sin", {x}, map(kernels::sin, x), [x = save(x)](Backward& pass, const Tensor& g) {
    return Gradients{g * cos(pass(x))};
  });
}

Tensor cos(const Tensor& x) {
  if (whole("cos", x)) return cos(x.to(default_dtype()));
  return record("cos", {x}, map(kernels::cos, x), [x = save(x)](Backward& pass, const Tensor& g) {
    return Gradients{neg(g * sin(pass(x)))};
  });
}

Tensor tanh(const Tensor& x) {
  if (whole("tanh", x)) return tanh(x.to(default_dtype()));
  Tensor y = map(kernels::tanh, x);
  return record("tanh", {x}, y, [y = save_output(y)](Backward& pass, const Tensor& g) {
    return Gradients{g * (1 - square(pass(y)))};
  });
}

Tensor sigmoid(const Tensor& x) {
  if (whole("sigmoid", x)) return sigmoid(x.to(default_dtype()));
  Tensor y = map(kernels::sigmoid, x);
  return record("sigmoid", {x}, y, [y = save_output(y)](Backward& pass, const Tensor& g) {
    const Tensor s = pass(y);
    return Gradients{g * (s * (1 - s))};
  });
}

Tensor erf(const Tensor& x) {
  if (whole("erf", x)) return erf(x.to(default_dtype()));
  return record("erf", {x}, map(kernels::erf, x), [x = save(x)](Backward& pass, const Tensor& g) {
    constexpr double slope = 2 * std::numbers::inv_sqrtpi;
    return Gradients{g * (exp(neg(square(pass(x)))) * slope)};
  });
}

Tensor relu(const Tensor& x) {
  check_real("relu", x);
  Tensor y = map(kernels::relu, x);
  return record("relu", {x}, y, [y = save_output(y)](Backward& pass, const Tensor& g) {
    return Gradients{relu_backward(g, pass(y))};
  });
}

Tensor silu(const Tensor& x) {
  check_real("silu", x);
  return record("silu", {x}, map(kernels::silu, x), [x = save(x)](Backward& pass, const Tensor& g) {
    const Tensor in = pass(x);
    const Tensor s = sigmoid(in);
    return Gradients{g * (s * (in * (1 - s) + 1))};
  });
}

Tensor floor(const Tensor& x) {
  check_real("floor", x);
  return record("floor", {x}, map(kernels::floor, x),
                [](Backward&, const Tensor& g) { return Gradients{zeros_like(g)}; });
}

Tensor add(const Tensor& x, Scalar value) {
  if (const auto wide = promoted("add", x, value)) return add(*wide, value);
  return record("add", {x}, map(kernels::add_scalar, x, value),
                [](Backward&, const Tensor& g) { return Gradients{g}; });
}

Tensor mul(const Tensor& x, Scalar value) {
  if (const auto wide = promoted("mul", x, value)) return mul(*wide, value);
  return record("mul", {x}, map(kernels::mul_scalar, x, value),
                [value](Backward&, const Tensor& g) { return Gradients{mul(g, value)}; });
}

Tensor div(const Tensor& x, Scalar value) {
  if (whole("div", x)) return div(x.to(default_dtype()), value);
  return record("div", {x}, map(kernels::div_scalar, x, value),
                [value](Backward&, const Tensor& g) { return Gradients{div(g, value)}; });
}

Tensor pow(const Tensor& x, Scalar exponent) {
  check_defined("pow", x);
  if (is_integral(x.dtype()) && !exponent.is_integer()) return pow(x.to(default_dtype()), exponent);
  check_floating("pow", x);
  const double p = exponent.to_double();
  return record("pow", {x}, map(kernels::pow_scalar, x, exponent),
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
  check_numeric("clamp", x);
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const Scalar from = bound(x, low, -infinity), to = bound(x, high, infinity);
  if (std::isnan(from.to_double()) || std::isnan(to.to_double())) {
    const Tensor y = full(x.shape(), std::numeric_limits<double>::quiet_NaN(), x.options());
    return record("clamp", {x}, y,
                  [](Backward&, const Tensor& g) { return Gradients{zeros_like(g)}; });
  }
  return record("clamp", {x}, map(kernels::clamp, x, from, to),
                [x = save(x), from, to](Backward& pass, const Tensor& g) {
                  const Tensor in = pass(x).detach();
                  return Gradients{masked_fill(g, logical_or(lt(in, from), gt(in, to)), 0)};
                });
}

}  // namespace sash
