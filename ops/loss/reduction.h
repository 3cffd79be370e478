#pragma once

#include "../../tensor/tensor.h"

namespace sash {

/// How a loss reduces its terms: not at all, to their mean, or to their sum.
enum class Reduction { none, mean, sum };

/// The terms of a loss as `reduction` says; the mean of nothing is NaN.
SASH_API Tensor reduced(const Tensor& terms, Reduction reduction);

}  // namespace sash
