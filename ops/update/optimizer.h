#pragma once

#include <span>

#include "../../tensor/tensor.h"

/// Functions over all gradients at once. Never recorded; tensors are contiguous, of floating
/// dtypes, on one device; anything else throws before any work is done.
namespace sash {

/// sqrt(sum over all elements of all tensors of x^2), as a 0-dimensional float64 tensor on their
/// device; bits do not depend on the number of threads. 0 for no tensors.
SASH_API Tensor global_norm(std::span<const Tensor> tensors);

/// x *= min(max_norm / (norm + 1e-6), 1) for each tensor, `norm` being what `global_norm` gave.
/// `ValueError` for a negative `max_norm`.
SASH_API void clip_by_norm_(std::span<const Tensor> tensors, const Tensor& norm, double max_norm);

/// x = min(max(x, -limit), limit) for each tensor. `ValueError` for a negative `limit`.
SASH_API void clip_by_value_(std::span<const Tensor> tensors, double limit);

}  // namespace sash
