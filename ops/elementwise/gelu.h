#pragma once

#include "../../tensor/tensor.h"

namespace sash {

/// How `gelu` computes the normal distribution function: by erf, or by the usual tanh formula.
enum class GeluApproximation { none, tanh };

/// y = x P(x), P(x) = (1 + erf(x / sqrt(2))) / 2 (Hendrycks and Gimpel, "Gaussian error linear
/// units", 2016), or with P(x) = (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2.
/// Floating dtypes; `DTypeError` otherwise.
SASH_API Tensor gelu(const Tensor& x, GeluApproximation approximation = GeluApproximation::none);

namespace composite {
/// `gelu` from plain ops.
SASH_API Tensor gelu(const Tensor& x, GeluApproximation approximation = GeluApproximation::none);
}  // namespace composite

}  // namespace sash
