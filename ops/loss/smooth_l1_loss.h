#pragma once

#include "reduction.h"

namespace sash {

struct SmoothL1LossOptions {
  double beta = 1;  ///< where the square ends and the line begins; 0: `l1_loss`
  Reduction reduction = Reduction::mean;
};

/// Of d = a_i - b_i: d^2 / (2 beta) where |d| <= beta, else |d| - beta / 2: `huber_loss` divided by
/// beta (Girshick, "Fast R-CNN", 2015). Shapes, dtypes and errors as of `mse_loss`; `ValueError`
/// unless beta is finite and not negative.
SASH_API Tensor smooth_l1_loss(const Tensor& a, const Tensor& b,
                               const SmoothL1LossOptions& options = {});

}  // namespace sash
