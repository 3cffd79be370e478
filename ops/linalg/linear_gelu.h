#pragma once

#include "../elementwise/gelu.h"

namespace sash {

/// y = gelu(x W' + b), which is `gelu(linear(x, weight, bias), approximation)`: one product that
/// also writes GELU's argument, for the gradient. Shapes, dtypes and errors as `linear`.
SASH_API Tensor linear_gelu(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                            GeluApproximation approximation = GeluApproximation::none);

/// y = gelu(x W1' + b1) W2' + b2, the feed-forward net of a transformer: `linear` of `linear_gelu`.
/// GELU's derivative and the gradient of b1 belong to the product of the gradient with W2.
/// x [..., in], weight1 [hidden, in], bias1 [hidden], weight2 [out, hidden], bias2 [out], either
/// bias may be undefined. Errors as `linear`.
SASH_API Tensor gelu_mlp(const Tensor& x, const Tensor& weight1, const Tensor& bias1,
                         const Tensor& weight2, const Tensor& bias2,
                         GeluApproximation approximation = GeluApproximation::none);

namespace composite {
/// `linear_gelu` and `gelu_mlp` from plain ops.
SASH_API Tensor linear_gelu(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                            GeluApproximation approximation = GeluApproximation::none);
SASH_API Tensor gelu_mlp(const Tensor& x, const Tensor& weight1, const Tensor& bias1,
                         const Tensor& weight2, const Tensor& bias2,
                         GeluApproximation approximation = GeluApproximation::none);
}  // namespace composite

}  // namespace sash
