#pragma once

#include "../../tensor/kernels/view.h"

#include <cstdint>

/// Windows that slide over the planes of x [N, C, H, W]. Element (i, j) of the window at (u, v) is
/// x at row u stride + i dilation - padding, and likewise for columns; past the edges there is
/// nothing.
namespace sash::kernels {

struct SlidingWindows {
  int64_t kernel[2];  ///< height and width, as in the next members
  int64_t stride[2];
  int64_t padding[2];
  int64_t dilation[2];

  /// Windows along an axis of `extent`; 0 if not even one fits.
  int64_t count(int axis, int64_t extent) const {
    const int64_t room = extent + 2 * padding[axis] - dilation[axis] * (kernel[axis] - 1) - 1;
    return room < 0 ? 0 : room / stride[axis] + 1;
  }
};

/// y [N, O, U, V] = the products of weight [O, C / groups, kernel] with the windows over x, plus
/// bias [O] or null. Paddings are shorter than the windows. x, weight and bias have any strides, y
/// is contiguous; float32 and float64. Of the CPU only.
extern SASH_API Kernel<void(KernelContext&, View x, View weight, const TensorView* bias,
                            const SlidingWindows& windows, int64_t groups, View y)>
    conv_forward;

/// dw [O, C / groups, kernel] = the gradient of conv_forward's weight from g [N, O, U, V], that of
/// y. Nothing is empty. x has any strides, g and dw are contiguous; float32 and float64. Of the CPU
/// only, for groups of many filters.
extern SASH_API Kernel<void(KernelContext&, View x, View g, const SlidingWindows& windows,
                            int64_t groups, View dw)>
    conv_weight_gradient;

/// y[n, c, i, j, u, v] = element (i, j) of the window at (u, v), 0 past the edges. x has any
/// strides. y has too, except that its last two axes are contiguous. Any floating dtype.
extern SASH_API Kernel<void(KernelContext&, View x, const SlidingWindows& windows, View y)>
    unfold_windows;

/// The adjoint: x[n, c, h, w] = the sum of y over the windows' elements that lie there, in
/// row-major order of (i, j). x is contiguous, and y along its last two axes; floating.
extern SASH_API Kernel<void(KernelContext&, View y, const SlidingWindows& windows, View x)>
    fold_windows;

/// y[n, c, u, v] = the largest element of a window, NaN if there is one, and index (int64) = h W +
/// w of the first such in row-major order. Every window has an element. x has any strides, y and
/// index are contiguous; floating.
extern SASH_API
    Kernel<void(KernelContext&, View x, const SlidingWindows& windows, View y, View index)>
        max_windows;

/// y[n, c, u, v] = the sum of a window's elements / (kernel height kernel width). x has any
/// strides, y is contiguous; floating.
extern SASH_API Kernel<void(KernelContext&, View x, const SlidingWindows& windows, View y)>
    mean_windows;

/// y[a, i, b] = (1 - part[i]) x[a, below[i], b] + part[i] x[a, below[i] + 1, b], without the second
/// term where part[i] is 0. x [A, E, B] and y [A, S, B] are contiguous, of float32 or float64;
/// below (int64) and part (float64) are [S].
extern SASH_API Kernel<void(KernelContext&, View x, View below, View part, View y)> resample;

/// The adjoint: x = the sum of the shares of y that its elements have.
extern SASH_API Kernel<void(KernelContext&, View y, View below, View part, View x)>
    resample_adjoint;

}  // namespace sash::kernels
