#include "unary.h"

#include <limits>
#include <numbers>

#include "../tensor/factories.h"
#include "../tensor/node.h"
#include "binary.h"
#include "checks.h"
#include "compare.h"
#include "kernels/unary.h"
#include "where.h"

namespace sash {

namespace kernels {
constinit UnaryKernel neg{"neg"};
constinit UnaryKernel abs{"abs"};
constinit UnaryKernel sign{"sign"};
constinit UnaryKernel square{"square"};
constinit ScalarKernel add_scalar{"add_scalar"};
constinit ScalarKernel mul_scalar{"mul_scalar"};
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

void check_real(const char* op, const Tensor& x) {
  check_defined(op, x);
  check_floating(op, x);
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
  check_real("exp", x);
  Tensor y = map(kernels::exp, x);
  return record("exp", {x}, y, [y = save_output(y)](Backward& pass, const Tensor& g) {
    return Gradients{g * pass(y)};
  });
}

Tensor log(const Tensor& x) {
  check_real("log", x);
  return record("log", {x}, map(kernels::log, x),
                [x = save(x)](Backward& pass, const Tensor& g) { return Gradients{g / pass(x)}; });
}

Tensor log1p(const Tensor& x) {
  check_real("log1p", x);
  return record(
      "log1p", {x}, map(kernels::log1p, x),
      [x = save(x)](Backward& pass, const Tensor& g) { return Gradients{g / (pass(x) + 1)}; });
}

Tensor expm1(const Tensor& x) {
  check_real("expm1", x);
  Tensor y = map(kernels::expm1, x);
  return record("expm1", {x}, y, [y = save_output(y)](Backward& pass, const Tensor& g) {
    return Gradients{g * (pass(y) + 1)};
  });
}

Tensor sqrt(const Tensor& x) {
  check_real("sqrt", x);
  Tensor y = map(kernels::sqrt, x);
  return record("sqrt", {x}, y, [y = save_output(y)](Backward& pass, const Tensor& g) {
    return Gradients{g / (pass(y) * 2)};
  });
}

Tensor rsqrt(const Tensor& x) {
  check_real("rsqrt", x);
  Tensor y = map(kernels::rsqrt, x);
  return record("rsqrt", {x}, y, [y = save_output(y)](Backward& pass, const Tensor& g) {
    return Gradients{g * (pow(pass(y), 3) * -0.5)};
  });
}

Tensor reciprocal(const Tensor& x) {
  check_real("reciprocal", x);
  Tensor y = map(kernels::reciprocal, x);
  return record("reciprocal", {x}, y, [y = save_output(y)](Backward& pass, const Tensor& g) {
    return Gradients{neg(g * square(pass(y)))};
  });
}

Tensor sin(const Tensor& x) {
  check_real("sin", x);
  return record("sin", {x}, map(kernels::sin, x), [x = save(x)](Backward& pass, const Tensor& g) {
    return Gradients{g * cos(pass(x))};
  });
}

Tensor cos(const Tensor& x) {
  check_real("cos", x);
  return record("cos", {x}, map(kernels::cos, x), [x = save(x)](Backward& pass, const Tensor& g) {
    return Gradients{neg(g * sin(pass(x)))};
  });
}

Tensor tanh(const Tensor& x) {
  check_real("tanh", x);
  Tensor y = map(kernels::tanh, x);
  return record("tanh", {x}, y, [y = save_output(y)](Backward& pass, const Tensor& g) {
    return Gradients{g * (1 - square(pass(y)))};
  });
}

Tensor sigmoid(const Tensor& x) {
  check_real("sigmoid", x);
  Tensor y = map(kernels::sigmoid, x);
  return record("sigmoid", {x}, y, [y = save_output(y)](Backward& pass, const Tensor& g) {
    const Tensor s = pass(y);
    return Gradients{g * (s * (1 - s))};
  });
}

Tensor erf(const Tensor& x) {
  check_real("erf", x);
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
  check_numeric("add", x);
  return record("add", {x}, map(kernels::add_scalar, x, value),
                [](Backward&, const Tensor& g) { return Gradients{g}; });
}

Tensor mul(const Tensor& x, Scalar value) {
  check_numeric("mul", x);
  return record("mul", {x}, map(kernels::mul_scalar, x, value),
                [value](Backward&, const Tensor& g) { return Gradients{mul(g, value)}; });
}

Tensor pow(const Tensor& x, Scalar exponent) {
  check_real("pow", x);
  const double p = exponent.to_double();
  return record("pow", {x}, map(kernels::pow_scalar, x, exponent),
                [x = save(x), p](Backward& pass, const Tensor& g) {
                  if (p == 0) return Gradients{zeros_like(g)};
                  return Gradients{g * (pow(pass(x), p - 1) * p)};
                });
}

Tensor clamp(const Tensor& x, std::optional<Scalar> low, std::optional<Scalar> high) {
  check_numeric("clamp", x);
  if (!low && !high) throw ValueError("clamp", "a bound", "none");
  if (low && high && low->to_double() > high->to_double()) {
    throw ValueError("clamp", "low <= high",
                     to_text(low->to_double()) + " and " + to_text(high->to_double()));
  }
  Scalar least = -std::numeric_limits<double>::infinity();
  Scalar most = std::numeric_limits<double>::infinity();
  if (x.dtype() == DType::int64) {
    least = std::numeric_limits<int64_t>::min();
    most = std::numeric_limits<int64_t>::max();
  } else if (x.dtype() == DType::int32) {
    least = std::numeric_limits<int32_t>::min();
    most = std::numeric_limits<int32_t>::max();
  }
  const Scalar from = low.value_or(least), to = high.value_or(most);
  return record("clamp", {x}, map(kernels::clamp, x, from, to),
                [x = save(x), from, to](Backward& pass, const Tensor& g) {
                  const Tensor in = pass(x).detach();
                  return Gradients{masked_fill(g, logical_or(lt(in, from), gt(in, to)), 0)};
                });
}

}  // namespace sash
