#pragma once

#include "../../tensor/tensor.h"

namespace sash {

struct BatchNormOptions {
  bool training = false;  ///< whether by the batch's mean and variance
  double momentum = 0.1;  ///< share of the batch in new running statistics
  double eps = 1e-5;
};

/// y = (x - mean) / sqrt(var + eps) * weight + bias for each channel of x [N, C, ...] (Ioffe and
/// Szegedy, 2015).
///
/// In training, mean and (biased) variance are the batch's, over all axes but 1, and the running
/// statistics, if defined, are moved towards them in place: r += momentum (new - r), with the
/// unbiased variance; by no elements, not at all. Otherwise they are the running ones, constants.
///
/// Floating dtypes. Running statistics, weight and bias are [C] or undefined (statistics 0 and 1
/// are not assumed: `ValueError` if they are missing outside training). `ShapeError` for other
/// shapes, and in training for fewer than two elements a channel.
SASH_API Tensor batch_norm(const Tensor& x, const Tensor& running_mean, const Tensor& running_var,
                           const Tensor& weight = {}, const Tensor& bias = {},
                           const BatchNormOptions& options = {});

}  // namespace sash
