#pragma once

#include "dropout_add_layer_norm.h"

namespace sash {

struct RMSNormOptions {
  double eps = 1e-6;
  bool affine = true;        ///< of `nn::RMSNorm`: whether it has a weight; functions ignore it
  bool unit_offset = false;  ///< multiply by 1 + weight (Gemma), not by weight
};
using RmsNormOptions [[deprecated("use RMSNormOptions")]] = RMSNormOptions;

/// y = x / sqrt(mean(x^2) + eps) * weight over the last axes (Zhang and Sennrich, "Root mean square
/// layer normalization", 2019). Halves are computed in float32 and rounded once.
///
/// weight has the normalised shape and the dtype of x, or is undefined (1). Gradients reach x and
/// weight. `ShapeError`, `DTypeError`, `DeviceError` as `layer_norm`; `ValueError` for a negative
/// eps, or a unit_offset without a weight.
SASH_API Tensor rms_norm(const Tensor& x, const Shape& normalized_shape, const Tensor& weight = {},
                         const RMSNormOptions& options = {});

/// sum = residual + branch and norm = rms_norm(sum, [D], weight): what a transformer does between
/// two branches, in one pass over the memory. branch and residual [..., D] of one shape and dtype.
SASH_API SumAndNorm add_rms_norm(const Tensor& branch, const Tensor& residual,
                                 const Tensor& weight = {}, const RMSNormOptions& options = {});

namespace composite {
/// The same from plain ops.
SASH_API Tensor rms_norm(const Tensor& x, const Shape& normalized_shape, const Tensor& weight = {},
                         const RMSNormOptions& options = {});
}  // namespace composite

}  // namespace sash
