#pragma once

#include <span>

#include "../../tensor/kernels/view.h"

/// Sums of branches with gates: see `gated_sum`. gates and dgates are [n, B, H, S]. Branches, their
/// gradients, y and g are [B, H, S, D] with equal strides, 1 along D. All of one floating dtype.
/// Without kernels, plain ops compute the same.
namespace sash::kernels {

inline constexpr size_t kMostBranches = 3;

using Branches = std::span<const TensorView>;

extern SASH_API Kernel<void(KernelContext&, View gates, Branches branches, View y)>
    gated_sum_forward;

extern SASH_API Kernel<void(KernelContext&, View gates, Branches branches, View g, View dgates,
                            Branches dbranches)>
    gated_sum_backward;

}  // namespace sash::kernels
