#pragma once

#include "../../tensor/tensor.h"

namespace sash {

/// y = (x - mean) / sqrt(var + eps) * weight + bias for x [N, C, ...], with mean and (biased)
/// variance of each item and group of C / groups channels (Wu and He, 2018).
///
/// Floating dtypes. Weight and bias are [C], or undefined. `ValueError` unless there is a group and
/// eps is not negative, `ShapeError` unless groups divide C.
SASH_API Tensor group_norm(const Tensor& x, int64_t groups, const Tensor& weight = {},
                           const Tensor& bias = {}, double eps = 1e-5);

}  // namespace sash
