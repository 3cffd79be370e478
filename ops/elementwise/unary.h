#pragma once

#include <optional>

#include "../../tensor/tensor.h"

/// Elementwise functions of one tensor, differentiable any number of times; the result has the
/// input's shape and dtype. Floating dtypes unless said otherwise; any other dtype throws
/// `DTypeError` naming the function. Integers wrap. A scalar operand counts as `result_type`
/// (promotion.h) says: int64 with 0.5 gives `default_dtype()`, bool with 2 int64.
namespace sash {

/// -x; integers too.
SASH_API Tensor neg(const Tensor& x);
/// |x|, with derivative 0 at 0; integers too.
SASH_API Tensor abs(const Tensor& x);
/// -1, 0 or 1, with derivative 0 everywhere; any dtype.
SASH_API Tensor sign(const Tensor& x);
/// x^2; integers too, and bool as int64.
SASH_API Tensor square(const Tensor& x);

// From here to erf: integers and bool are cast to `default_dtype()`.

/// e^x. On a CPU, 0 where it would be subnormal, as in the sigmoid of numbers so far below 0.
SASH_API Tensor exp(const Tensor& x);
/// Natural logarithm. On a CPU, subnormal numbers count as the smallest normal one.
SASH_API Tensor log(const Tensor& x);
/// Logarithm to base 2; otherwise like `log`.
SASH_API Tensor log2(const Tensor& x);
/// ln(1 + x), accurate near 0.
SASH_API Tensor log1p(const Tensor& x);
/// e^x - 1, accurate near 0.
SASH_API Tensor expm1(const Tensor& x);
SASH_API Tensor sqrt(const Tensor& x);
/// x^(-1/2).
SASH_API Tensor rsqrt(const Tensor& x);
/// 1 / x.
SASH_API Tensor reciprocal(const Tensor& x);
SASH_API Tensor sin(const Tensor& x);
SASH_API Tensor cos(const Tensor& x);
SASH_API Tensor tanh(const Tensor& x);
/// 1 / (1 + e^-x).
SASH_API Tensor sigmoid(const Tensor& x);
/// 2 / sqrt(pi) times the integral of e^(-t^2) from 0 to x.
SASH_API Tensor erf(const Tensor& x);

/// max(x, 0), with derivative 0 at 0.
SASH_API Tensor relu(const Tensor& x);
/// x sigmoid(x) (Elfwing, Uchibe and Doya, 2018).
SASH_API Tensor silu(const Tensor& x);
/// ln(1 + e^x), for large |x| too.
SASH_API Tensor softplus(const Tensor& x);
/// x for x > 0, else slope x, with derivative `slope` at 0 (Maas, Hannun and Ng, 2013).
SASH_API Tensor leaky_relu(const Tensor& x, double slope = 0.01);
/// x for x > 0, else alpha (e^x - 1), with derivative alpha at 0 (Clevert, Unterthiner and
/// Hochreiter, 2016).
SASH_API Tensor elu(const Tensor& x, double alpha = 1);
/// The greatest integer not above x, with derivative 0 everywhere.
SASH_API Tensor floor(const Tensor& x);
/// The least integer not below x, with derivative 0 everywhere.
SASH_API Tensor ceil(const Tensor& x);
/// The nearest integer, the even one of two, with derivative 0 everywhere.
SASH_API Tensor round(const Tensor& x);

/// x + value; integers and bool too. `ValueError` if the result's dtype cannot hold the value.
SASH_API Tensor add(const Tensor& x, Scalar value);
/// x value; otherwise like `add`.
SASH_API Tensor mul(const Tensor& x, Scalar value);
/// x / value; integers and bool are cast to `default_dtype()`.
SASH_API Tensor div(const Tensor& x, Scalar value);
/// x^exponent; integers and bool too. `ValueError` for integers with a negative integer exponent.
SASH_API Tensor pow(const Tensor& x, Scalar exponent);
/// min(max(x, low), high), where a bound may be absent. The derivative is 1 between the bounds, and
/// 0 on and beyond them, as in PyTorch 2.15. All NaN if a bound is. Integers and bool too.
/// `ValueError` if both bounds are absent or low > high.
SASH_API Tensor clamp(const Tensor& x, std::optional<Scalar> low, std::optional<Scalar> high = {});

}  // namespace sash
