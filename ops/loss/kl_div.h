#pragma once

#include "reduction.h"

namespace sash {

struct KLDivOptions {
  Reduction reduction = Reduction::mean;  ///< over all elements; divide the sum for a mean of rows
  bool log_target = false;                ///< whether targets are logarithms too
};

/// t_i (ln t_i - x_i), 0 where t_i is 0, for x the logarithms of a model's probabilities and t
/// those of the target; exp(t_i) (t_i - x_i) with `log_target`, 0 where t_i is -inf. As in PyTorch,
/// x comes first and nothing is normalised; its "batchmean" is the sum divided by the number of
/// rows. Differentiable in both. Shapes, dtypes and errors as of `mse_loss`.
SASH_API Tensor kl_div(const Tensor& x, const Tensor& target, const KLDivOptions& options = {});

}  // namespace sash
