#pragma once

#include "../../tensor/tensor.h"

namespace sash {

/// y = (x - mean) / sqrt(var + eps) * weight + bias, with the mean and the biased variance taken
/// over the trailing axes `normalized_shape` (Ba, Kiros and Hinton, "Layer normalization", 2016).
///
/// x is [..., normalized_shape]; weight and bias have the shape `normalized_shape`, and either may
/// be undefined (1 and 0). Floating dtypes. Throws `ShapeError` if the shapes do not fit or
/// `normalized_shape` has no axes, `DTypeError` and `DeviceError` if weight or bias differ from x.
SASH_API Tensor layer_norm(const Tensor& x, const Shape& normalized_shape,
                           const Tensor& weight = {}, const Tensor& bias = {}, double eps = 1e-5);

namespace composite {
/// `layer_norm` from plain ops.
SASH_API Tensor layer_norm(const Tensor& x, const Shape& normalized_shape,
                           const Tensor& weight = {}, const Tensor& bias = {}, double eps = 1e-5);
}  // namespace composite

}  // namespace sash
