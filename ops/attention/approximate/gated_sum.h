#pragma once

#include <span>

#include "../../../tensor/tensor.h"

namespace sash {

/// The sum of one to three branches [B, H, S, D] of attention, each times a gate for every head of
/// every token: y[b, h, s] = sum_i gates[i, b, h, s] branches[i][b, h, s]. gates [n, B, H, S];
/// all of one floating dtype. On CUDA, one pass over the branches computes y, which lies in memory
/// as the first branch does, and one pass the gradients; elsewhere plain ops do. Throws
/// `ValueError` for no branch or more than three. The gates of native sparse attention (Yuan et
/// al., 2025).
SASH_API Tensor gated_sum(const Tensor& gates, std::span<const Tensor> branches);

namespace composite {

/// `gated_sum` from plain ops.
SASH_API Tensor gated_sum(const Tensor& gates, std::span<const Tensor> branches);

}  // namespace composite

}  // namespace sash
