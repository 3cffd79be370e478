#pragma once

#include <functional>
#include <vector>

#include "../tensor.h"

namespace sash {

/// Trades compute for memory: runs `fn(inputs)` without saving anything for the backward pass, and
/// runs it again in the backward pass, from the same random state (Chen et al., "Training deep nets
/// with sublinear memory cost", 2016).
///
/// Undefined inputs are passed on as they are. Parameters and other recorded tensors that `fn`
/// captures get their gradients too. `fn` must do the same both times and write to no input and to
/// nothing that it captures; statistics and counts of calls are left to the first run
/// (`recomputing`). `AutogradError` in the backward pass if an input was overwritten, by `fn` too,
/// or a captured parameter since, if the second run uses a tensor that requires grad and the first
/// did not, if it draws more or fewer times from the generator, or if the pass creates a graph:
/// first derivatives only. `ValueError` if `fn` is empty.
SASH_API std::vector<Tensor> checkpoint(
    std::function<std::vector<Tensor>(const std::vector<Tensor>&)> fn,
    const std::vector<Tensor>& inputs);

/// The same for functions of one tensor.
SASH_API Tensor checkpoint(std::function<Tensor(const Tensor&)> fn, const Tensor& input);

/// Whether this thread is in the second run of a `checkpoint`: a module that keeps statistics of
/// its calls must not count this one, as `BatchNorm` and `AttentionRecorder` do not.
SASH_API bool recomputing();

}  // namespace sash
