#pragma once

#include <optional>

#include "../../tensor/tensor.h"
#include "height_width.h"

namespace sash {

enum class InterpolateMode { nearest, bilinear };

struct InterpolateOptions {
  std::optional<HeightWidth> size{};     ///< of the result
  std::optional<double> scale_factor{};  ///< instead: the size is floor(extent factor)
  InterpolateMode mode = InterpolateMode::nearest;
  bool align_corners = false;  ///< bilinear: whether the centres of corner elements coincide
};

/// x [N, C, H, W] at another size. Row i of the result is at row r of x, likewise columns: with
/// s = H / size (or 1 / scale_factor), `nearest` takes floor(i s); `bilinear` is linear between the
/// two rows around r = max(0, (i + 1/2) s - 1/2), or with `align_corners` r = i (H - 1) / (size -
/// 1).
///
/// Floating dtypes. `ValueError` unless either size or scale_factor is given and positive, or if
/// `align_corners` is set for nearest; `ShapeError` for another rank or an empty plane.
SASH_API Tensor interpolate(const Tensor& x, const InterpolateOptions& options);

namespace composite {
/// `interpolate` from plain ops.
SASH_API Tensor interpolate(const Tensor& x, const InterpolateOptions& options);
}  // namespace composite

}  // namespace sash
