#include "binary.h"

#include "../tensor/factories.h"
#include "../tensor/node.h"
#include "checks.h"
#include "compare.h"
#include "kernels/binary.h"
#include "reduce.h"
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

/// Gives g to the elements that `wins` chose from a, the rest to b, and halves of it to both where
/// they are `tied`.
Gradients share(Backward& pass, const Tensor& g, const Tensor& wins, const Tensor& tied,
                const Shape& a_shape, const Shape& b_shape) {
  const Tensor half = where(tied, g * 0.5, g);
  const Tensor zero = zeros({}, g.options());
  Gradients grads(2);
  if (pass.needs(0)) grads[0] = sum_to(where(logical_or(wins, tied), half, zero), a_shape);
  if (pass.needs(1)) grads[1] = sum_to(where(wins, zero, half), b_shape);
  return grads;
}

}  // namespace

Tensor add(const Tensor& a, const Tensor& b) {
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
                    // ln 0 never enters: not even into the second derivative.
                    const Tensor safe = masked_fill(base, eq(base, 0), 1);
                    grads[1] = sum_to(g * (pow(base, exponent) * log(safe)), b_shape);
                  }
                  return grads;
                });
}

Tensor maximum(const Tensor& a, const Tensor& b) {
  Tensor y = combine("maximum", kernels::maximum, a, b);
  return record("maximum", {a, b}, y,
                [a_shape = a.shape(), b_shape = b.shape(), a = save(a), b = save(b)](
                    Backward& pass, const Tensor& g) {
                  const Tensor p = pass(a), q = pass(b);
                  return share(pass, g, gt(p, q), eq(p, q), a_shape, b_shape);
                });
}

Tensor minimum(const Tensor& a, const Tensor& b) {
  Tensor y = combine("minimum", kernels::minimum, a, b);
  return record("minimum", {a, b}, y,
                [a_shape = a.shape(), b_shape = b.shape(), a = save(a), b = save(b)](
                    Backward& pass, const Tensor& g) {
                  const Tensor p = pass(a), q = pass(b);
                  return share(pass, g, lt(p, q), eq(p, q), a_shape, b_shape);
                });
}

Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b); }
Tensor operator-(const Tensor& a, const Tensor& b) { return sub(a, b); }
Tensor operator*(const Tensor& a, const Tensor& b) { return mul(a, b); }
Tensor operator/(const Tensor& a, const Tensor& b) { return div(a, b); }

Tensor operator+(const Tensor& a, Scalar b) { return add(a, b); }
Tensor operator-(const Tensor& a, Scalar b) {
  return add(a, b.is_integer() ? Scalar(-b.to<int64_t>()) : Scalar(-b.to_double()));
}
Tensor operator*(const Tensor& a, Scalar b) { return mul(a, b); }
Tensor operator/(const Tensor& a, Scalar b) {
  check_defined("div", a);
  check_floating("div", a);
  return mul(a, 1 / b.to_double());
}
Tensor operator+(Scalar a, const Tensor& b) { return add(b, a); }
Tensor operator-(Scalar a, const Tensor& b) { return add(neg(b), a); }
Tensor operator*(Scalar a, const Tensor& b) { return mul(b, a); }
Tensor operator/(Scalar a, const Tensor& b) { return mul(reciprocal(b), a); }

}  // namespace sash
