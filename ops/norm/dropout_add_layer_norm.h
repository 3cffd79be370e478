#pragma once

#include "../../core/philox.h"
#include "../../tensor/tensor.h"

namespace sash {

struct SumAndNorm {
  Tensor sum;
  Tensor norm;
};

/// sum = residual + dropout(branch, p) and norm = layer_norm(sum, [D], weight, bias, eps): what a
/// transformer does between two branches, in one pass over the memory.
///
/// branch and residual are [..., D] of one shape and dtype; weight and bias are [D], and either may
/// be undefined (1 and 0). Nothing is dropped if p = 0. `ShapeError`, `DTypeError`, `DeviceError`
/// and `ValueError` as `dropout` and `layer_norm`.
SASH_API SumAndNorm dropout_add_layer_norm(const Tensor& branch, const Tensor& residual,
                                           const Tensor& weight = {}, const Tensor& bias = {},
                                           double p = 0, double eps = 1e-5);

namespace composite {
/// `dropout_add_layer_norm` from plain ops, with the mask of `state` as in `dropout_with`.
SASH_API SumAndNorm dropout_add_layer_norm(const Tensor& branch, const Tensor& residual,
                                           const Tensor& weight, const Tensor& bias, double p,
                                           double eps, PhiloxState state);
}  // namespace composite

}  // namespace sash
