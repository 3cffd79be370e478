#include "binary.h"

#include "../../tensor/autograd/node.h"
#include "../../tensor/factories.h"
#include "../checks.h"
#include "../kernels/elementwise.h"
#include "../reduce/reduce.h"
#include "compare.h"
#include "promotion.h"
#include "unary.h"
#include "where.h"

namespace sash {

namespace kernels {
constinit BinaryKernel add{"add"};
constinit BinaryKernel sub{"sub"};
constinit BinaryKernel mul{"mul"};
constinit BinaryKernel div{"div"};
constinit BinaryKernel pow{"pow"};
constinit BinaryKernel maximum{"maximum"};
constinit BinaryKernel minimum{"minimum"};
}  // namespace kernels

namespace {

/// Whether operands must be cast to one dtype first.
bool mixed(const char* op, const Tensor& a, const Tensor& b) {
  check_defined(op, a);
  check_defined(op, b);
  check_same_device(op, a, b);
  return a.dtype() != b.dtype();
}

Tensor combine(const char* op, const kernels::BinaryKernel& kernel, const Tensor& a,
               const Tensor& b) {
  check_compatible(op, a, b);
  if (a.dtype() == DType::uint8 || a.dtype() == DType::boolean) {
    throw DTypeError(op, "a floating dtype, int32 or int64", name(a.dtype()));
  }
  Tensor y = empty(broadcast_shapes(a.shape(), b.shape(), op), a.options());
  KernelContext context = kernel_context(a.device());
  kernel(context, a.tensor_view(), b.tensor_view(), y.tensor_view());
  return y;
}

Tensor combine_floating(const char* op, const kernels::BinaryKernel& kernel, const Tensor& a,
                        const Tensor& b) {
  check_compatible(op, a, b);
  check_floating(op, a);
  return combine(op, kernel, a, b);
}

/// Gradients of maximum and minimum: g goes to the winner, half of it to each where they tie.
Gradients split_tie_gradient(Backward& pass, const Tensor& g, const Tensor& wins,
                             const Tensor& tied, const Shape& a_shape, const Shape& b_shape) {
  const Tensor half = where(tied, g * 0.5, g);
  const Tensor zero = zeros({}, g.options());
  Gradients grads(2);
  if (pass.needs(0)) grads[0] = sum_to(where(logical_or(wins, tied), half, zero), a_shape);
  if (pass.needs(1)) grads[1] = sum_to(where(wins, zero, half), b_shape);
  return grads;
}

}  // namespace

Tensor add(const Tensor& a, const Tensor& b) {
  if (mixed("add", a, b)) return in_dtype(result_type(a, b), "add", add, a, b);
  Tensor y = combine("add", kernels::add, a, b);
  return record("add", {a, b}, y,
                [a_shape = a.shape(), b_shape = b.shape()](Backward& pass, const Tensor& g) {
                  Gradients grads(2);
                  if (pass.needs(0)) grads[0] = sum_to(g, a_shape);
                  if (pass.needs(1)) grads[1] = sum_to(g, b_shape);
                  return grads;
                });
}

Tensor sub(const Tensor& a, const Tensor& b) {
  if (mixed("sub", a, b)) return in_dtype(result_type(a, b), "sub", sub, a, b);
  Tensor y = combine("sub", kernels::sub, a, b);
  return record("sub", {a, b}, y,
                [a_shape = a.shape(), b_shape = b.shape()](Backward& pass, const Tensor& g) {
                  Gradients grads(2);
                  if (pass.needs(0)) grads[0] = sum_to(g, a_shape);
                  if (pass.needs(1)) grads[1] = neg(sum_to(g, b_shape));
                  return grads;
                });
}

Tensor mul(const Tensor& a, const Tensor& b) {
  if (mixed("mul", a, b)) return in_dtype(result_type(a, b), "mul", mul, a, b);
  Tensor y = combine("mul", kernels::mul, a, b);
  return record("mul", {a, b}, y,
                [a_shape = a.shape(), b_shape = b.shape(), a = save_if(b.requires_grad(), a),
                 b = save_if(a.requires_grad(), b)](Backward& pass, const Tensor& g) {
                  Gradients grads(2);
                  if (pass.needs(0)) grads[0] = sum_to(g * pass(b), a_shape);
                  if (pass.needs(1)) grads[1] = sum_to(g * pass(a), b_shape);
                  return grads;
                });
}

Tensor div(const Tensor& a, const Tensor& b) {
  if (mixed("div", a, b) || is_integral(a.dtype())) {
    const DType dtype = result_type(a, b);
    return in_dtype(is_integral(dtype) ? default_dtype() : dtype, "div", div, a, b);
  }
  Tensor y = combine_floating("div", kernels::div, a, b);
  return record("div", {a, b}, y,
                [a_shape = a.shape(), b_shape = b.shape(), a = save_if(b.requires_grad(), a),
                 b = save(b)](Backward& pass, const Tensor& g) {
                  const Tensor divisor = pass(b);
                  const Tensor quotient = g / divisor;
                  Gradients grads(2);
                  if (pass.needs(0)) grads[0] = sum_to(quotient, a_shape);
                  if (pass.needs(1)) {
                    grads[1] = neg(sum_to(quotient * (pass(a) / divisor), b_shape));
                  }
                  return grads;
                });
}

Tensor pow(const Tensor& a, const Tensor& b) {
  if (mixed("pow", a, b)) return in_dtype(result_type(a, b), "pow", pow, a, b);
  Tensor y = combine_floating("pow", kernels::pow, a, b);
  return record("pow", {a, b}, y,
                [a_shape = a.shape(), b_shape = b.shape(), a = save(a), b = save(b)](
                    Backward& pass, const Tensor& g) {
                  const Tensor base = pass(a), exponent = pass(b);
                  const Tensor zero = zeros({}, g.options());
                  Gradients grads(2);
                  if (pass.needs(0)) {
                    const Tensor slope = exponent * pow(base, exponent - 1);
                    grads[0] = sum_to(g * where(eq(exponent, 0), zero, slope), a_shape);
                  }
                  if (pass.needs(1)) {
                    // Where 0^b is flat in b, ln 0 never enters: not even into the second
                    // derivative.
                    const Tensor flat = logical_and(eq(base, 0), ge(exponent, 0));
                    const Tensor safe = where(flat, ones({}, g.options()), base);
                    grads[1] = sum_to(g * (pow(base, exponent) * log(safe)), b_shape);
                  }
                  return grads;
                });
}

Tensor maximum(const Tensor& a, const Tensor& b) {
  if (mixed("maximum", a, b)) return in_dtype(result_type(a, b), "maximum", maximum, a, b);
  Tensor y = combine("maximum", kernels::maximum, a, b);
  return record("maximum", {a, b}, y,
                [a_shape = a.shape(), b_shape = b.shape(), a = save(a), b = save(b)](
                    Backward& pass, const Tensor& g) {
                  const Tensor p = pass(a), q = pass(b);
                  return split_tie_gradient(pass, g, gt(p, q), eq(p, q), a_shape, b_shape);
                });
}

Tensor minimum(const Tensor& a, const Tensor& b) {
  if (mixed("minimum", a, b)) return in_dtype(result_type(a, b), "minimum", minimum, a, b);
  Tensor y = combine("minimum", kernels::minimum, a, b);
  return record("minimum", {a, b}, y,
                [a_shape = a.shape(), b_shape = b.shape(), a = save(a), b = save(b)](
                    Backward& pass, const Tensor& g) {
                  const Tensor p = pass(a), q = pass(b);
                  return split_tie_gradient(pass, g, lt(p, q), eq(p, q), a_shape, b_shape);
                });
}

Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b); }
Tensor operator-(const Tensor& a, const Tensor& b) { return sub(a, b); }
Tensor operator*(const Tensor& a, const Tensor& b) { return mul(a, b); }
Tensor operator/(const Tensor& a, const Tensor& b) { return div(a, b); }

Tensor operator+(const Tensor& a, Scalar b) { return add(a, b); }
Tensor operator-(const Tensor& a, Scalar b) {
  check_defined("sub", a);
  if (is_floating(a.dtype()) || !b.is_integer()) return add(a, -b.to_double());
  check_holds("sub", result_type(a, b), b);
  return add(a, static_cast<int64_t>(-b.to<uint64_t>()));
}
Tensor operator*(const Tensor& a, Scalar b) { return mul(a, b); }
Tensor operator/(const Tensor& a, Scalar b) { return div(a, b); }
Tensor operator+(Scalar a, const Tensor& b) { return add(b, a); }
Tensor operator-(Scalar a, const Tensor& b) {
  check_defined("sub", b);
  return add(neg(b.to(result_type(b, a))), a);
}
Tensor operator*(Scalar a, const Tensor& b) { return mul(b, a); }
Tensor operator/(Scalar a, const Tensor& b) {
  check_defined("div", b);
  const DType dtype = is_integral(b.dtype()) ? default_dtype() : b.dtype();
  return div(scalar_tensor(a, {.dtype = dtype, .device = b.device()}), b.to(dtype));
}

}  // namespace sash
