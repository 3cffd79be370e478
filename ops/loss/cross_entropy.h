#pragma once

#include "../../tensor/tensor.h"
#include "reduction.h"

namespace sash {

struct CrossEntropyOptions {
  int64_t ignore_index = -100;  ///< rows with this target are ignored
  double label_smoothing = 0;   ///< s, in [0, 1]
  Reduction reduction = Reduction::mean;
  /// Axis of the classes, the last by default; 1 for PyTorch's [N, C, T]. Never guessed: with T = C
  /// that cannot be told from [B, T, C].
  int64_t class_axis = -1;
  Tensor weight{};  ///< w, factor of each class [C]; undefined for 1. Gets no gradient
};

/// Loss of each row: (1 - s) w_target (-log p_target) + s / C sum_c w_c (-log p_c) with
/// p = softmax(logits), and 0 for an ignored row. The mean is the sum divided by the number of rows
/// that are not ignored (with weights, by the sum of their w_target), and NaN if there are none, as
/// in PyTorch.
///
/// logits are [N, C] with targets [N], or [..., C] with [...]: the classes are the last axis unless
/// `class_axis` says otherwise, and targets have the shape of the others. PyTorch reads logits of
/// rank 3 as [N, C, T]: that is `{.class_axis = 1}` here. targets are int64 class indices.
/// Reduction::none gives the shape of the targets.
///
/// Floating targets of the shape of the logits are probabilities t_c (mixup, distillation). The
/// loss of a row is then sum_c w_c ((1 - s) t_c + s / C) (-log p_c), and the mean is the sum
/// divided by the number of rows, with weights too; nothing is ignored. They get a gradient.
///
/// Floating dtypes, the weight's any; losses of halves are averaged in float32. Throws
/// `ShapeError`, `DTypeError`, `DeviceError`, `ValueError` for s outside [0, 1], and `IndexError`
/// for a target that is neither in [0, C) nor ignored.
SASH_API Tensor cross_entropy(const Tensor& logits, const Tensor& targets,
                              const CrossEntropyOptions& options = {});

namespace composite {
/// `cross_entropy` from plain ops.
SASH_API Tensor cross_entropy(const Tensor& logits, const Tensor& targets,
                              const CrossEntropyOptions& options = {});
}  // namespace composite

}  // namespace sash
