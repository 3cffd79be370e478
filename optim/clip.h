#pragma once

#include <vector>

#include "../tensor/tensor.h"

namespace sash::optim {

/// Scales all gradients by min(max_norm / (norm + 1e-6), 1) in place, where norm is the Euclidean
/// norm of all of them together, and returns norm: a 0-dimensional float64 tensor on their device,
/// so that nothing waits for the host. Parameters without a gradient are skipped.
/// `ValueError` for a negative max_norm, `DeviceError` for gradients on different devices.
SASH_API Tensor clip_grad_norm_(const std::vector<Tensor>& parameters, double max_norm);

/// Limits every element of every gradient to [-limit, limit] in place. `ValueError` for a negative
/// limit.
SASH_API void clip_grad_value_(const std::vector<Tensor>& parameters, double limit);

}  // namespace sash::optim
