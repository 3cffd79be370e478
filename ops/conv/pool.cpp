#include "pool.h"

#include <vector>

#include "../index/gather.h"
#include "../op.h"
#include "../shape/concat.h"
#include "windows.h"

namespace sash {

namespace kernels {
constinit decltype(max_windows) max_windows{"max_windows"};
constinit decltype(mean_windows) mean_windows{"mean_windows"};
}  // namespace kernels

namespace {

using kernels::SlidingWindows;

SlidingWindows checked(const char* op, int axes, const Tensor& x, HeightWidth kernel,
                       const Pool2dOptions& options) {
  check_floating(op, x);
  const SlidingWindows windows = detail::checked_windows(
      op, axes, kernel, options.stride.value_or(kernel), options.padding, 1);
  for (int axis = 0; axis < 2; ++axis) {
    if (windows.padding[axis] <= windows.kernel[axis] / 2) continue;
    throw ValueError(
        op, "a padding of at most half the kernel",
        std::to_string(windows.padding[axis]) + " for " + std::to_string(windows.kernel[axis]));
  }
  return windows;
}

/// The shape of one number for each window.
Shape pooled(const Shape& planes, const SlidingWindows& windows) {
  return {planes[0], planes[1], windows.count(0, planes[2]), windows.count(1, planes[3])};
}

Tensor max_pool(const char* op, int axes, const Tensor& x, HeightWidth kernel,
                const Pool2dOptions& options) {
  SlidingWindows windows = checked(op, axes, x, kernel, options);
  const Tensor planes = detail::as_planes(op, axes, x, windows);
  const Tensor y = empty(pooled(planes.shape(), windows), x.options());
  const Tensor index = empty(y.shape(), {.dtype = DType::int64, .device = x.device()});
  run_kernel(kernels::max_windows, planes, windows, y, index);
  record(op, {planes}, y,
         [from = planes.shape(), index = save(index)](Backward& pass, const Tensor& g) {
           const Shape lines{from[0], from[1], from[2] * from[3]};
           const Shape chosen{from[0], from[1], g.size(2) * g.size(3)};
           const Tensor flat = scatter_add(zeros(lines, g.options()), 2, pass(index).view(chosen),
                                           g.reshape(chosen));
           return Gradients{flat.view(from)};
         });
  return detail::from_planes(axes, y, x);
}

// The two below are each other's gradients.

Tensor window_means(const Tensor& x, const SlidingWindows& windows);

/// x of `shape` that gets from each window an equal share of its g.
Tensor shared_out(const Tensor& g, const SlidingWindows& windows, const Shape& shape) {
  const Tensor x = empty(shape, g.options());
  const Tensor share = unrecorded([&] {
    const double count =
        static_cast<double>(windows.kernel[0]) * static_cast<double>(windows.kernel[1]);
    return (g / count).contiguous();
  });
  TensorView view = share.tensor_view();
  view.shape.insert(2, windows.kernel[0]);
  view.shape.insert(3, windows.kernel[1]);
  view.strides.insert(2, 0);
  view.strides.insert(3, 0);
  run_kernel(kernels::fold_windows, view, windows, x);
  return record("avg_pool_gradient", {g}, x, [windows](Backward&, const Tensor& h) {
    return Gradients{window_means(h, windows)};
  });
}

Tensor window_means(const Tensor& x, const SlidingWindows& windows) {
  const Tensor y = empty(pooled(x.shape(), windows), x.options());
  run_kernel(kernels::mean_windows, x, windows, y);
  return record("avg_pool", {x}, y, [windows, shape = x.shape()](Backward&, const Tensor& g) {
    return Gradients{shared_out(g, windows, shape)};
  });
}

Tensor avg_pool(const char* op, int axes, const Tensor& x, HeightWidth kernel,
                const Pool2dOptions& options) {
  SlidingWindows windows = checked(op, axes, x, kernel, options);
  if (is_half(x.dtype())) {
    return avg_pool(op, axes, x.to(DType::float32), kernel, options).to(x.dtype());
  }
  const Tensor planes = detail::as_planes(op, axes, x, windows);
  Tensor y = window_means(planes, windows);
  const bool padded = windows.padding[0] > 0 || windows.padding[1] > 0;
  if (padded && !options.count_include_pad) {
    const Tensor one = ones({1, 1, planes.size(2), planes.size(3)}, x.options());
    y = y / window_means(one, windows);  // the share of the window within the edges
  }
  return detail::from_planes(axes, y, x);
}

/// The means of `size` parts of an axis.
Tensor part_means(const Tensor& x, int axis, int64_t size) {
  std::vector<Tensor> parts;
  const int64_t extent = x.size(axis);
  for (int64_t i = 0; i < size; ++i) {
    const int64_t begin = i * extent / size, end = ((i + 1) * extent + size - 1) / size;
    parts.push_back(mean(x.narrow(axis, begin, end - begin), {axis}, true));
  }
  return cat(parts, axis);
}

Pool2dOptions for_one_axis(const Pool1dOptions& options) {
  Pool2dOptions both{.padding = options.padding, .count_include_pad = options.count_include_pad};
  if (options.stride) both.stride = *options.stride;
  return both;
}

}  // namespace

Tensor max_pool1d(const Tensor& x, int64_t kernel, const Pool1dOptions& options) {
  return max_pool("max_pool1d", 1, x, kernel, for_one_axis(options));
}

Tensor max_pool2d(const Tensor& x, HeightWidth kernel, const Pool2dOptions& options) {
  return max_pool("max_pool2d", 2, x, kernel, options);
}

Tensor avg_pool1d(const Tensor& x, int64_t kernel, const Pool1dOptions& options) {
  return avg_pool("avg_pool1d", 1, x, kernel, for_one_axis(options));
}

Tensor avg_pool2d(const Tensor& x, HeightWidth kernel, const Pool2dOptions& options) {
  return avg_pool("avg_pool2d", 2, x, kernel, options);
}

Tensor adaptive_avg_pool2d(const Tensor& x, HeightWidth size) {
  constexpr const char* op = "adaptive_avg_pool2d";
  check_floating(op, x);
  for (const int64_t parts : {size.height, size.width}) {
    if (parts < 1) throw ValueError(op, "a size of at least 1", std::to_string(parts));
  }
  if ((x.rank() != 3 && x.rank() != 4) || x.size(-2) == 0 || x.size(-1) == 0) {
    throw ShapeError(op, "x [N, C, H, W] or [C, H, W] with planes that are not empty",
                     to_string(x.shape()));
  }
  if (size.height == 1 && size.width == 1) return mean(x, {-2, -1}, true);
  if (x.size(-2) % size.height == 0 && x.size(-1) % size.width == 0) {
    return avg_pool(op, 2, x, {x.size(-2) / size.height, x.size(-1) / size.width}, {});
  }
  if (is_half(x.dtype())) return adaptive_avg_pool2d(x.to(DType::float32), size).to(x.dtype());
  return part_means(part_means(x, x.rank() - 2, size.height), x.rank() - 1, size.width);
}

}  // namespace sash
