#pragma once

#include "../../tensor/tensor.h"
#include "height_width.h"

/// Convolutions (cross-correlations, as in PyTorch) by unfolded products. Floating dtypes.
///
/// With x [N, C, H, W] (or [C, H, W] without a batch), weight [O, C / groups, KH, KW] and bias [O]:
///
///     y[n, o, u, v] = bias[o] + sum over c, i, j of
///                     weight[o, c, i, j] x[n, c, u stride + i dilation - padding, v ...]
///
/// where c runs over the channels of o's group, and x is 0 past its edges; y is
/// [N, O, (H + 2 padding - dilation (KH - 1) - 1) / stride + 1, ...]. `ShapeError` for shapes that
/// do not fit, `ValueError` for options that are too small.
namespace sash {

struct Conv1dOptions {
  int64_t stride = 1;
  int64_t padding = 0;
  int64_t dilation = 1;
  int64_t groups = 1;
};

struct Conv2dOptions {
  HeightWidth stride = 1;
  HeightWidth padding = 0;
  HeightWidth dilation = 1;
  int64_t groups = 1;
};

/// The convolution along one axis: x [N, C, L] or [C, L], weight [O, C / groups, K].
SASH_API Tensor conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                       const Conv1dOptions& options = {});

SASH_API Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                       const Conv2dOptions& options = {});

struct ConvTranspose2dOptions {
  HeightWidth stride = 1;
  HeightWidth padding = 0;
  HeightWidth output_padding = 0;  ///< below the stride: of the sizes that fit, which one y has
  HeightWidth dilation = 1;
  int64_t groups = 1;
};

/// The adjoint of `conv2d` with the same weight and options, plus a bias: of x [N, C, H, W] (or
/// [C, H, W]), weight [C, O / groups, KH, KW] and bias [O] it is
/// [N, O, (H - 1) stride - 2 padding + dilation (KH - 1) + output_padding + 1, ...].
SASH_API Tensor conv_transpose2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                                 const ConvTranspose2dOptions& options = {});

}  // namespace sash
