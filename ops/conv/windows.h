#pragma once

#include "../../tensor/tensor.h"
#include "../kernels/conv.h"
#include "height_width.h"

/// Windows and shapes of convolutions and pools.
namespace sash::detail {

/// Checks the numbers and returns the windows. `axes` is 1 or 2; with one axis, the height is 1.
kernels::SlidingWindows checked_windows(const char* op, int axes, HeightWidth kernel,
                                        HeightWidth stride, HeightWidth padding,
                                        HeightWidth dilation);

/// x as [N, C, H, W]: from [N, C, H, W] or [C, H, W], for one axis from [N, C, L] or [C, L].
/// `ShapeError` for other ranks, or if no window fits. A stride above the padded extent is replaced
/// by that extent.
Tensor as_planes(const char* op, int axes, const Tensor& x, kernels::SlidingWindows& windows);
/// y [N, C, H, W] with the axes that `like` had before `as_planes`.
Tensor from_planes(int axes, const Tensor& y, const Tensor& like);

}  // namespace sash::detail
