#pragma once

#include "../../tensor/tensor.h"

namespace sash {

/// x <- (x - mean) / sqrt(var + eps) * weight + bias in place, with the mean and the biased
/// variance over the trailing axes `normalized_shape` (see `layer_norm`). Returns x. weight and
/// bias, either of which may be undefined, may have another floating dtype than x: then rows are
/// computed in the widest, and rounded once to x's. Rows that lie one after the other, of the dtype
/// that they are computed in, are replaced where they are; others go through scratch memory of at
/// most 8 Mi elements, 1/2 Mi on the CPU (or one row).
///
/// Recorded: without weight and bias the gradient needs only the result and each row's 1 / sqrt(var
/// + eps); with them the old x, of which a clone is kept. Throws as `layer_norm`; `ValueError` for
/// an expanded x, or normalized axes that cannot be viewed as one; `AutogradError` for a leaf that
/// requires grad, unless under `NoGradGuard`.
SASH_API Tensor layer_norm_(Tensor x, const Shape& normalized_shape, const Tensor& weight = {},
                            const Tensor& bias = {}, double eps = 1e-5);

}  // namespace sash
