#include "norm.h"

#include <cmath>

#include "../../tensor/autograd/node.h"
#include "../../tensor/factories.h"
#include "../elementwise/binary.h"
#include "../elementwise/compare.h"
#include "../elementwise/unary.h"
#include "../elementwise/where.h"
#include "reduce.h"
#include "reduced_shape.h"

namespace sash {
namespace {

/// a / b, and 0 where b is 0, in derivatives too.
Tensor quotient_or_zero(const Tensor& a, const Tensor& b) {
  const Tensor zero = eq(b.detach(), 0);
  return masked_fill(a / masked_fill(b, zero, 1), zero, 0);
}

/// |x|^e, and 0 where x is 0, in derivatives too.
Tensor power_or_zero(const Tensor& x, double exponent) {
  const Tensor zero = eq(x.detach(), 0);
  return masked_fill(pow(masked_fill(abs(x), zero, 1), exponent), zero, 0);
}

Tensor euclidean(const Tensor& x, const Dims& axes) {
  const Tensor y = [&] {
    const NoGradGuard no_grad;
    return sqrt(sum(square(x), axes, true));
  }();
  return record("norm", {x}, y, [x = save(x), y = save_output(y)](Backward& pass, const Tensor& g) {
    return Gradients{pass(x) * quotient_or_zero(g, pass(y))};
  });
}

Tensor by_power(const Tensor& x, double p, const Dims& axes) {
  const Tensor y = [&] {
    const NoGradGuard no_grad;
    return pow(sum(pow(abs(x), p), axes, true), 1 / p);
  }();
  return record("norm", {x}, y,
                [x = save(x), y = save_output(y), p](Backward& pass, const Tensor& g) {
                  const Tensor value = pass(x);
                  const Tensor slope = sign(value) * power_or_zero(value, p - 1);
                  return Gradients{slope * (g * power_or_zero(pass(y), 1 - p))};
                });
}

Tensor count_nonzero(const Tensor& x, const Dims& axes) {
  const Tensor y = [&] {
    const NoGradGuard no_grad;
    return sum(ne(x, 0), axes, true).to(x.dtype());
  }();
  return record("norm", {x}, y, [from = x.shape()](Backward&, const Tensor& g) {
    return Gradients{zeros(from, g.options())};
  });
}

}  // namespace

Tensor norm(const Tensor& x, double p, const Dims& axes, bool keepdim) {
  const detail::ReducedShape shape = detail::reduced_shape("norm", x, axes);
  check_floating("norm", x);
  if (std::isnan(p)) throw ValueError("norm", "an order p", "nan");
  if (std::isinf(p) && shape.count == 0) {
    throw ShapeError("norm", "reduced axes that are not empty", to_string(x.shape()));
  }
  if (is_half(x.dtype())) return norm(x.to(DType::float32), p, axes, keepdim).to(x.dtype());
  const Tensor y = [&] {
    if (p == 2) return euclidean(x, axes);
    if (p == 1) return sum(abs(x), axes, true);
    if (p == 0) return count_nonzero(x, axes);
    if (std::isinf(p)) return p > 0 ? amax(abs(x), axes, true) : amin(abs(x), axes, true);
    return by_power(x, p, axes);
  }();
  return detail::finished(y, shape, keepdim);
}

Tensor std(const Tensor& x, const Dims& axes, int64_t correction, bool keepdim) {
  const detail::ReducedShape shape = detail::reduced_shape("std", x, axes);
  check_floating("std", x);
  if (is_half(x.dtype())) return std(x.to(DType::float32), axes, correction, keepdim).to(x.dtype());
  const Tensor y = [&] {
    const NoGradGuard no_grad;
    return sqrt(var(x, axes, correction, true));
  }();
  const double divisor = static_cast<double>(std::max<int64_t>(0, shape.count - correction));
  const Tensor recorded =
      record("std", {x}, y,
             [x = save(x), y = save_output(y), axes, divisor](Backward& pass, const Tensor& g) {
               const Tensor value = pass(x);
               const Tensor scale = quotient_or_zero(g, pass(y)) / divisor;
               return Gradients{(value - mean(value, axes, true)) * scale};
             });
  return detail::finished(recorded, shape, keepdim);
}

Tensor Tensor::norm(double p, const Dims& axes, bool keepdim) const {
  return sash::norm(*this, p, axes, keepdim);
}
Tensor Tensor::std(const Dims& axes, int64_t correction, bool keepdim) const {
  return sash::std(*this, axes, correction, keepdim);
}

}  // namespace sash
