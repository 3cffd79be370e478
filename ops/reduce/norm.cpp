#include "norm.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "../kernels/reduce.h"
#include "../op.h"
#include "moments.h"
#include "reduced_shape.h"

namespace sash {

namespace kernels {
constinit decltype(length) length{"length"};
constinit decltype(var_mean) var_mean{"var_mean"};
}  // namespace kernels

namespace detail {

Moments moments(const Tensor& x, const Shape& kept, double divisor, bool root) {
  const Moments result{empty(kept, x.options()), empty(kept, x.options())};
  run_kernel(kernels::var_mean, x, result.var, result.mean, divisor, root);
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
  run_kernel(kernels::length, x, y);
  return record("norm", {x}, y, [x = save(x), y = save_output(y)](Backward& pass, const Tensor& g) {
    return Gradients{pass(x) * quotient_or_zero(g, pass(y))};
  });
}

/// The norm, computed from x / size, where size is the size of the element whose power is largest:
/// powers of x itself may overflow or underflow where the norm does not.
Tensor by_power(const Tensor& x, double p, const Dims& axes) {
  const Tensor y = unrecorded([&] {
    const Tensor sizes = abs(x);
    if (x.numel() == 0) return pow(sum(sizes, axes, true), 1 / p);
    const Tensor top = p > 0 ? amax(sizes, axes, true) : amin(sizes, axes, true);
    const Tensor flat = logical_or(eq(top, 0), eq(top, std::numeric_limits<double>::infinity()));
    const Tensor size = masked_fill(top, flat, 1);
    return size * pow(sum(pow(sizes / size, p), axes, true), 1 / p);
  });
  return record("norm", {x}, y,
                [x = save(x), y = save_output(y), p](Backward& pass, const Tensor& g) {
                  const Tensor value = pass(x);
                  const Tensor share = quotient_or_zero(value, pass(y));
                  return Gradients{sign(value) * power_or_zero(share, p - 1) * g};
                });
}

Tensor count_nonzero(const Tensor& x, const Dims& axes) {
  const Tensor y = unrecorded([&] { return sum(ne(x, 0), axes, true).to(x.dtype()); });
  return record("norm", {x}, y, [from = x.shape()](Backward&, const Tensor& g) {
    return Gradients{zeros(from, g.options())};
  });
}

/// x less its mean over the axes where `mean` has extent 1: exactly 0 where all x are equal.
Tensor centred(const Tensor& x, const Tensor& mean) {
  const Tensor y = unrecorded([&] { return x - mean; });
  return record("centred", {x}, y, [kept = mean.shape()](Backward&, const Tensor& g) {
    return Gradients{centred(g, detail::moments(g.detach(), kept, 1, false).mean)};
  });
}

/// The variance, or its `root`.
Tensor spread(const char* op, const Tensor& x, const Dims& axes, int64_t correction, bool keepdim,
              bool root) {
  const detail::ReducedShape shape = detail::reduced_shape(op, x, axes);
  check_floating(op, x);
  if (is_half(x.dtype())) {
    return spread(op, x.to(DType::float32), axes, correction, keepdim, root).to(x.dtype());
  }
  const double divisor =
      std::max(0.0, static_cast<double>(shape.count) - static_cast<double>(correction));
  const auto [y, mean] = detail::moments(x, shape.kept, divisor, root);
  const Tensor recorded = record(
      op, {x}, y,
      [x = save(x), y = root ? save_output(y) : Saved(), mean = mean, divisor, root](
          Backward& pass, const Tensor& g) {
        // (x - mean) / (y divisor) for the root.
        const Tensor scale = root ? quotient_or_zero(g, pass(y)) / divisor : g * (2 / divisor);
        return Gradients{centred(pass(x), mean) * scale};
      });
  return detail::finished(recorded, shape, keepdim);
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
  return spread("var", x, axes, correction, keepdim, false);
}

Tensor std(const Tensor& x, const Dims& axes, int64_t correction, bool keepdim) {
  return spread("std", x, axes, correction, keepdim, true);
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
