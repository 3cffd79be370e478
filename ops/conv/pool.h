#pragma once

#include <optional>

#include "../../tensor/tensor.h"
#include "height_width.h"

/// Pools: one number for each window of x [N, C, H, W] or [C, H, W] (for one axis, [N, C, L] or
/// [C, L]). y is [N, C, (H + 2 padding - kernel) / stride + 1, ...]. Floating dtypes. `ShapeError`
/// for shapes that do not fit, `ValueError` for options that are too small, or a padding above half
/// the kernel.
namespace sash {

struct Pool1dOptions {
  std::optional<int64_t> stride{};  ///< default: the kernel
  int64_t padding = 0;
  bool count_include_pad = true;  ///< of means: whether zeros past the edges count as elements
};

struct Pool2dOptions {
  std::optional<HeightWidth> stride{};  ///< default: the kernel
  HeightWidth padding = 0;
  bool count_include_pad = true;  ///< of means: whether zeros past the edges count as elements
};

/// The largest element of each window, without places past the edges. NaN wins. The gradient goes
/// to the first of equal elements.
SASH_API Tensor max_pool1d(const Tensor& x, int64_t kernel, const Pool1dOptions& options = {});
SASH_API Tensor max_pool2d(const Tensor& x, HeightWidth kernel, const Pool2dOptions& options = {});

/// The mean of each window, with zeros past the edges, or without `count_include_pad` of the
/// elements within them.
SASH_API Tensor avg_pool1d(const Tensor& x, int64_t kernel, const Pool1dOptions& options = {});
SASH_API Tensor avg_pool2d(const Tensor& x, HeightWidth kernel, const Pool2dOptions& options = {});

/// Means over parts of the plane, `size` of them along each axis: part i of an extent H has the
/// rows from floor(i H / size) to ceil((i + 1) H / size). Parts may overlap. Floating dtypes.
/// `ShapeError` for an empty plane, `ValueError` for a size below 1.
SASH_API Tensor adaptive_avg_pool2d(const Tensor& x, HeightWidth size);

}  // namespace sash
