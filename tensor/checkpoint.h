#pragma once

#include <functional>
#include <vector>

#include "tensor.h"

namespace sash {

/// Trades compute for memory: runs `fn(inputs)` without recording, and again in the backward pass,
/// from the same random state, to get what the first run did not keep (Chen et al., "Training deep
/// nets with sublinear memory cost", 2016).
///
/// Parameters that `fn` captures get their gradients too, as long as one of `inputs` requires grad;
/// if none does, the result is not recorded at all. First derivatives only: a pass that creates a
/// graph throws `AutogradError`.
SASH_API std::vector<Tensor> checkpoint(
    std::function<std::vector<Tensor>(const std::vector<Tensor>&)> fn,
    const std::vector<Tensor>& inputs);

/// The same for functions of one tensor.
SASH_API Tensor checkpoint(std::function<Tensor(const Tensor&)> fn, const Tensor& input);

}  // namespace sash
