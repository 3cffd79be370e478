#include "interpolate.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "../index/gather.h"
#include "../kernels/conv.h"
#include "../op.h"

namespace sash {

namespace kernels {
constinit decltype(resample) resample{"resample"};
constinit decltype(resample_adjoint) resample_adjoint{"resample_adjoint"};
}  // namespace kernels

namespace {

constexpr const char* kInterpolate = "interpolate";

/// One axis, from `extent` to `size`.
struct Resampling {
  int64_t extent;
  int64_t size;
  double step;  ///< between neighbours of the result, in elements of x
};

Resampling resampling_of(int64_t extent, std::optional<int64_t> size,
                         std::optional<double> factor) {
  if (factor && !(*factor > 0 && *factor < 1e9)) {
    throw ValueError(kInterpolate, "a positive scale_factor", to_text(*factor));
  }
  const auto from = static_cast<double>(extent);
  const int64_t target = size ? *size : static_cast<int64_t>(from * *factor);
  if (target < 1) throw ValueError(kInterpolate, "a size of at least 1", std::to_string(target));
  return {extent, target, factor ? 1 / *factor : from / static_cast<double>(target)};
}

/// Element i of the result is a share 1 - part[i] of element below[i], and a share part[i] of the
/// next one, along an axis.
struct Places {
  Tensor below;  // int64
  Tensor part;   // float64
};

Places places_of(const Resampling& along, const InterpolateOptions& options, Device device) {
  std::vector<int64_t> below;
  std::vector<double> part;
  const auto last = static_cast<double>(along.extent - 1);
  for (int64_t i = 0; i < along.size; ++i) {
    const auto place = static_cast<double>(i);
    double at = std::max(0.0, (place + 0.5) * along.step - 0.5);
    if (options.align_corners) {
      at = along.size == 1 ? 0 : place * last / static_cast<double>(along.size - 1);
    }
    // The nearest one in float32, as in PyTorch: rounding decides between neighbours.
    const bool nearest = options.mode == InterpolateMode::nearest;
    if (nearest) at = std::floor(static_cast<float>(i) * static_cast<float>(along.step));
    at = std::min(at, last);
    below.push_back(static_cast<int64_t>(at));
    part.push_back(at - std::floor(at));
  }
  return {tensor(below, {along.size}, {.device = device}),
          tensor(part, {along.size}, {.dtype = DType::float64, .device = device})};
}

/// The contiguous x as [outer, extent, inner] around an axis.
TensorView around(const Tensor& x, int axis) {
  int64_t outer = 1, inner = 1;
  for (int i = 0; i < axis; ++i) outer *= x.size(i);
  for (int i = axis + 1; i < x.rank(); ++i) inner *= x.size(i);
  return contiguous_view(x, {outer, x.size(axis), inner});
}

// The two below are each other's gradients.

Tensor spread(const Tensor& g, int axis, int64_t extent, const Places& places);

Tensor resampled(const Tensor& x, int axis, const Places& places) {
  const Tensor from = x.contiguous();
  Shape shape = x.shape();
  shape[axis] = places.below.numel();
  const Tensor y = empty(shape, x.options());
  run_kernel(kernels::resample, around(from, axis), places.below, places.part, around(y, axis));
  return record(kInterpolate, {x}, y,
                [axis, extent = x.size(axis), places](Backward&, const Tensor& g) {
                  return Gradients{spread(g, axis, extent, places)};
                });
}

Tensor spread(const Tensor& g, int axis, int64_t extent, const Places& places) {
  const Tensor from = g.contiguous();
  Shape shape = g.shape();
  shape[axis] = extent;
  const Tensor x = empty(shape, g.options());
  run_kernel(kernels::resample_adjoint, around(from, axis), places.below, places.part,
             around(x, axis));
  return record("interpolate_gradient", {g}, x, [axis, places](Backward&, const Tensor& h) {
    return Gradients{resampled(h, axis, places)};
  });
}

/// The same from plain ops.
Tensor from_ops(const Tensor& x, int axis, const Places& places) {
  const Tensor next = minimum(places.below + 1, x.size(axis) - 1);
  Shape along = Shape::filled(x.rank(), 1);
  along[axis] = places.part.numel();
  const Tensor t = places.part.to(x.dtype()).view(along);
  const Tensor a = index_select(x, axis, places.below);
  return where(eq(t, 0), a, a * (1 - t) + index_select(x, axis, next) * t);
}

Tensor resized(const Tensor& x, const InterpolateOptions& options,
               Tensor (*along)(const Tensor&, int, const Places&)) {
  check_floating(kInterpolate, x);
  if (x.rank() != 4 || x.size(2) == 0 || x.size(3) == 0) {
    throw ShapeError(kInterpolate, "x [N, C, H, W] with planes that are not empty",
                     to_string(x.shape()));
  }
  const auto& [size, factor, mode, align_corners] = options;
  if (size.has_value() == factor.has_value()) {
    throw ValueError(kInterpolate, "either a size or a scale_factor", size ? "both" : "neither");
  }
  std::optional<int64_t> height, width;
  if (size) height = size->height, width = size->width;
  const Resampling rows = resampling_of(x.size(2), height, factor);
  const Resampling columns = resampling_of(x.size(3), width, factor);
  if (mode == InterpolateMode::nearest && align_corners) {
    throw ValueError(kInterpolate, "align_corners of bilinear", "of nearest");
  }
  const Tensor in = is_half(x.dtype()) ? x.to(DType::float32) : x;
  const Tensor wide = along(in, 3, places_of(columns, options, x.device()));
  return along(wide, 2, places_of(rows, options, x.device())).to(x.dtype());
}

}  // namespace

Tensor composite::interpolate(const Tensor& x, const InterpolateOptions& options) {
  return resized(x, options, from_ops);
}

Tensor interpolate(const Tensor& x, const InterpolateOptions& options) {
  check_defined(kInterpolate, x);
  return resized(x, options, use_fused(kernels::resample, x.device()) ? resampled : from_ops);
}

}  // namespace sash
