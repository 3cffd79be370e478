#pragma once

#include "../tensor/tensor.h"
#include "reduction.h"

namespace sash {

struct CrossEntropyOptions {
  int64_t ignore_index = -100;  ///< rows with this target count for nothing
  double label_smoothing = 0;   ///< s, in [0, 1]
  Reduction reduction = Reduction::mean;
};

/// Loss of each row: (1 - s) (-log p_target) + s / C sum_c (-log p_c) with p = softmax(logits),
/// and 0 for an ignored row. The mean is over the rows that are not ignored, and NaN if there are
/// none, as in PyTorch.
///
/// logits are [N, C] with targets [N], or [B, T, C] with [B, T] (the classes are the last axis);
/// targets are int64 class indices. Reduction::none gives the shape of the targets. Floating
/// dtypes. Throws `ShapeError`, `DTypeError`, `DeviceError`, `ValueError` for s outside [0, 1],
/// and `IndexError` for a target that is neither in [0, C) nor ignored.
SASH_API Tensor cross_entropy(const Tensor& logits, const Tensor& targets,
                              const CrossEntropyOptions& options = {});

namespace composite {
/// The same from plain ops.
SASH_API Tensor cross_entropy(const Tensor& logits, const Tensor& targets,
                              const CrossEntropyOptions& options = {});
}  // namespace composite

}  // namespace sash
