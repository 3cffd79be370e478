#include "norm.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "../../tensor/autograd/node.h"
#include "../../tensor/factories.h"
#include "../elementwise/binary.h"
#include "../elementwise/compare.h"
#include "../elementwise/unary.h"
#include "../elementwise/where.h"
#include "../kernels/reduce.h"
#include "moments.h"
#include "reduce.h"
#include "reduced_shape.h"

namespace sash {

namespace kernels {
constinit Kernel<void(KernelContext&, const TensorView&, const TensorView&)> length{"length"};
constinit Kernel<void(KernelContext&, const TensorView&, const TensorView&, const TensorView&,
                      double)>
    var_mean{"var_mean"};
}  // namespace kernels

namespace detail {

Moments moments(const Tensor& x, const Dims& axes, const Shape& kept, double divisor,
                bool with_mean) {
  const NoGradGuard no_grad;
  if (!use_fused(kernels::var_mean, x.device())) {
    // Chan, Golub, LeVeque, "Algorithms for computing the sample variance", 1983: the second term
    // takes back what the rounding of the mean adds. Where it overflows, so does the first.
    const Tensor centre = mean(x, axes, true), deviation = x - centre;
    const double share = static_cast<double>(centre.numel()) / static_cast<double>(x.numel());
    const Tensor rest = square(sum(deviation, axes, true) * std::sqrt(share));
    const Tensor back = masked_fill(rest, eq(rest, std::numeric_limits<double>::infinity()), 0);
    return {clamp(sum(square(deviation), axes, true) - back, 0) / divisor, centre};
  }
  const Moments result{empty(kept, x.options()), with_mean ? empty(kept, x.options()) : Tensor()};
  KernelContext context = kernel_context(x.device());
  kernels::var_mean(context, x.tensor_view(), result.var.tensor_view(),
                    with_mean ? result.mean.tensor_view() : TensorView{}, divisor);
  return result;
}

}  // namespace detail

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

Tensor euclidean(const Tensor& x, const Shape& kept) {
  const Tensor y = empty(kept, x.options());
  KernelContext context = kernel_context(x.device());
  kernels::length(context, x.tensor_view(), y.tensor_view());
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

/// n - correction, at least 0.
double freedom(const detail::ReducedShape& shape, int64_t correction) {
  return std::max(0.0, static_cast<double>(shape.count) - static_cast<double>(correction));
}

}  // namespace

Tensor norm(const Tensor& x, double p, const Dims& axes, bool keepdim) {
  const detail::ReducedShape shape = detail::reduced_shape("norm", x, axes);
  check_floating("norm", x);
  if (std::isnan(p)) throw ValueError("norm", "an order p", "nan");
  if ((std::isinf(p) || p < 0) && shape.count == 0) {
    throw ShapeError("norm", "reduced axes that are not empty", to_string(x.shape()));
  }
  if (is_half(x.dtype())) return norm(x.to(DType::float32), p, axes, keepdim).to(x.dtype());
  const Tensor y = [&] {
    if (p == 2) return euclidean(x, shape.kept);
    if (p == 1) return sum(abs(x), axes, true);
    if (p == 0) return count_nonzero(x, axes);
    if (std::isinf(p)) return p > 0 ? amax(abs(x), axes, true) : amin(abs(x), axes, true);
    return by_power(x, p, axes);
  }();
  return detail::finished(y, shape, keepdim);
}

Tensor var(const Tensor& x, const Dims& axes, int64_t correction, bool keepdim) {
  const detail::ReducedShape shape = detail::reduced_shape("var", x, axes);
  check_floating("var", x);
  if (is_half(x.dtype())) return var(x.to(DType::float32), axes, correction, keepdim).to(x.dtype());
  const double divisor = freedom(shape, correction);
  const Tensor y = detail::moments(x, axes, shape.kept, divisor, false).var;
  const Tensor recorded =
      record("var", {x}, y, [x = save(x), axes, divisor](Backward& pass, const Tensor& g) {
        const Tensor value = pass(x);
        return Gradients{(value - mean(value, axes, true)) * (g * (2 / divisor))};
      });
  return detail::finished(recorded, shape, keepdim);
}

Tensor std(const Tensor& x, const Dims& axes, int64_t correction, bool keepdim) {
  const detail::ReducedShape shape = detail::reduced_shape("std", x, axes);
  check_floating("std", x);
  if (is_half(x.dtype())) return std(x.to(DType::float32), axes, correction, keepdim).to(x.dtype());
  const double divisor = freedom(shape, correction);
  const Tensor y = [&] {
    const NoGradGuard no_grad;
    return sqrt(detail::moments(x, axes, shape.kept, divisor, false).var);
  }();
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
Tensor Tensor::var(const Dims& axes, int64_t correction, bool keepdim) const {
  return sash::var(*this, axes, correction, keepdim);
}
Tensor Tensor::std(const Dims& axes, int64_t correction, bool keepdim) const {
  return sash::std(*this, axes, correction, keepdim);
}

}  // namespace sash
