#pragma once

#include "reduction.h"

namespace sash {

struct NLLLossOptions {
  Tensor weight{};              ///< factor of each class [C]; undefined for 1. Gets no gradient
  int64_t ignore_index = -100;  ///< rows with this target are ignored
  Reduction reduction = Reduction::mean;
  int64_t class_axis = -1;  ///< axis of the classes; 1 for PyTorch's [N, C, T]
};

/// Loss of each row: -weight[target] logp[target], and 0 for an ignored row; with
/// `log_softmax(logits)` as log-probabilities, `cross_entropy`. The mean is the sum divided by the
/// weights of the targets that are not ignored. Shapes, dtypes and errors as of `cross_entropy`.
SASH_API Tensor nll_loss(const Tensor& logp, const Tensor& targets,
                         const NLLLossOptions& options = {});

}  // namespace sash
