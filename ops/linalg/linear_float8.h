#pragma once

#include "../elementwise/glu.h"

namespace sash {

/// y = x W' + b as `linear`, with products of FP8 matrices: x and W are cast to E4M3, the gradient
/// of y to E5M2, each with one scale, its format's largest number divided by the largest absolute
/// value of the tensor ("current scaling"). Results, bias and its gradient have the dtype of x.
/// Gradients are the gradients of `linear` at the cast operands; there is no second derivative.
///
/// If the rows of x, `in` or `out` are not multiples of 16, this is `linear`. float32, float16 and
/// bfloat16; errors as `linear`. `DeviceError` on a card without FP8, below compute capability 8.9.
SASH_API Tensor linear_float8(const Tensor& x, const Tensor& weight, const Tensor& bias = {});

/// y = glu(x W1', kind) W2': `linear_float8` of `glu` of `linear_float8`, with the same bits. The
/// kernels that cast glu's result and its gradient also compute them, so neither is stored in the
/// dtype of x. x [..., in], weight1 [2 hidden, in], weight2 [out, hidden].
SASH_API Tensor glu_mlp_float8(const Tensor& x, const Tensor& weight1, const Tensor& weight2,
                               GluKind kind = GluKind::swiglu);

namespace composite {
/// `glu_mlp_float8` from `linear_float8` and `glu`.
SASH_API Tensor glu_mlp_float8(const Tensor& x, const Tensor& weight1, const Tensor& weight2,
                               GluKind kind = GluKind::swiglu);
}  // namespace composite

}  // namespace sash
