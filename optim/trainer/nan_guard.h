#pragma once

#include <functional>
#include <span>
#include <string>

#include "../../tensor/io/state_dict.h"

namespace sash::optim {

/// The name of the first tensor with a NaN or an infinity; empty if there is none.
std::string first_nonfinite(const StateDict& tensors);

/// Where a step's first NaN or infinity comes from, as text: a tensor of `batch` or of
/// `parameters`, or else the op that `rerun`, forward and backward once more, stops at.
std::string explain_nonfinite(std::span<const Tensor> batch, const StateDict& parameters,
                              const std::function<void()>& rerun);

}  // namespace sash::optim
