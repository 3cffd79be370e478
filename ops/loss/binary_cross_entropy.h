#pragma once

#include "reduction.h"

namespace sash {

struct BinaryCrossEntropyOptions {
  /// Factor of the loss of positive targets, broadcast to the logits; undefined for 1. No gradient
  /// flows to it.
  Tensor pos_weight{};
  Reduction reduction = Reduction::mean;
};

/// -pos_weight z ln p - (1 - z) ln(1 - p) with p = sigmoid(x), for logits x and targets z in
/// [0, 1]; finite for large |x| too. Differentiable in both. Shapes, dtypes and errors as of
/// `mse_loss`; `ShapeError` for a `pos_weight` that does not broadcast to the logits.
SASH_API Tensor binary_cross_entropy_with_logits(const Tensor& x, const Tensor& target,
                                                 const BinaryCrossEntropyOptions& options = {});

}  // namespace sash
