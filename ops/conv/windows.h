#pragma once

#include "../../tensor/tensor.h"
#include "../kernels/conv.h"
#include "height_width.h"

/// What convolutions and pools share.
namespace sash::detail {

/// The windows, after checks of their numbers; `axes` is 1 or 2; of 1, the height is 1.
kernels::SlidingWindows checked_windows(const char* op, int axes, HeightWidth kernel,
                                        HeightWidth stride, HeightWidth padding,
                                        HeightWidth dilation);

/// x as [N, C, H, W]: from [N, C, H, W] or [C, H, W], for one axis from [N, C, L] or [C, L].
/// `ShapeError` for other ranks, or if not even one window fits. Strides beyond the padded extent
/// become that.
Tensor as_planes(const char* op, int axes, const Tensor& x, kernels::SlidingWindows& windows);
/// y [N, C, H, W] in the form that `like` had.
Tensor from_planes(int axes, const Tensor& y, const Tensor& like);

}  // namespace sash::detail
