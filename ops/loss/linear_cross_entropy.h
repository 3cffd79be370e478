#pragma once

#include "../../tensor/tensor.h"
#include "reduction.h"

namespace sash {

struct LinearCrossEntropyOptions {
  int64_t ignore_index = -100;  ///< rows with this target are ignored
  double label_smoothing = 0;   ///< in [0, 1]
  Reduction reduction = Reduction::mean;
  /// Rows whose logits are held at a time; 0: about 1 GiB of halves. The bits depend on it.
  int64_t chunk = 0;
};

/// `cross_entropy(linear(x, weight), targets)`, the loss of a language model with the head `weight`
/// [V, D], where the logits are never held whole: the logits of a chunk of rows become their own
/// gradient, which is multiplied with x and weight at once. So the forward pass computes the
/// gradients, in all the products that both passes would take.
///
/// x is [..., D], targets are int64 [...]; the result is a single element, float32 for halves, and
/// the gradient of weight is summed in float32. Errors as `linear` and `cross_entropy`;
/// `ValueError` for Reduction::none or a negative chunk.
SASH_API Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets,
                                     const LinearCrossEntropyOptions& options = {});

namespace composite {
/// `linear_cross_entropy` from plain ops.
SASH_API Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets,
                                     const LinearCrossEntropyOptions& options = {});
}  // namespace composite

}  // namespace sash
