#pragma once

#include "reduction.h"

namespace sash {

struct HuberLossOptions {
  double delta = 1;  ///< where the square ends and the line begins
  Reduction reduction = Reduction::mean;
};

/// Of d = a_i - b_i: d^2 / 2 where |d| <= delta, else delta (|d| - delta / 2) (Huber, 1964);
/// differentiable in both. Shapes, dtypes and errors as of `mse_loss`; `ValueError` unless delta is
/// positive and finite.
SASH_API Tensor huber_loss(const Tensor& a, const Tensor& b, const HuberLossOptions& options = {});

}  // namespace sash
