#pragma once

#include "reduction.h"

namespace sash {

/// |a_i - b_i|, reduced over all elements; differentiable in both, with derivative 0 where they are
/// equal. Shapes, dtypes and errors as of `mse_loss`.
SASH_API Tensor l1_loss(const Tensor& a, const Tensor& b, Reduction reduction = Reduction::mean);

}  // namespace sash
