#include "pool.h"

#include "../../tensor/autograd/grad_mode.h"
#include "../../tensor/factories.h"
#include "../checks.h"
#include "../index/gather.h"
#include "../reduce/reduce.h"
#include "windows.h"

namespace sash {

namespace kernels {
constinit Kernel<void(KernelContext&, const TensorView&, const SlidingWindows&, const TensorView&)>
    argmax_windows{"argmax_windows"};
}  // namespace kernels

namespace {

using kernels::SlidingWindows;

SlidingWindows checked(const char* op, int axes, const Tensor& x, HeightWidth kernel,
                       const Pool2dOptions& options) {
  check_defined(op, x);
  check_floating(op, x);
  const SlidingWindows windows = detail::checked_windows(
      op, axes, kernel, options.stride.value_or(kernel), options.padding, 1);
  for (int axis = 0; axis < 2; ++axis) {
    if (2 * windows.padding[axis] <= windows.kernel[axis]) continue;
    throw ValueError(
        op, "a padding of at most half the kernel",
        std::to_string(windows.padding[axis]) + " for " + std::to_string(windows.kernel[axis]));
  }
  return windows;
}

Tensor max_pool(const char* op, int axes, const Tensor& x, HeightWidth kernel,
                const Pool2dOptions& options) {
  const SlidingWindows windows = checked(op, axes, x, kernel, options);
  const Tensor planes = detail::as_planes(op, axes, x, windows);
  const Shape shape{planes.size(0), planes.size(1), windows.count(0, planes.size(2)),
                    windows.count(1, planes.size(3))};
  const Tensor index = empty(shape, {.dtype = DType::int64, .device = x.device()});
  KernelContext context = kernel_context(x.device());
  kernels::argmax_windows(context, planes.tensor_view(), windows, index.tensor_view());
  const Tensor flat = planes.reshape({shape[0], shape[1], planes.size(2) * planes.size(3)});
  const Tensor y = gather(flat, 2, index.view({shape[0], shape[1], shape[2] * shape[3]}));
  return detail::from_planes(axes, y.view(shape), x);
}

Tensor avg_pool(const char* op, int axes, const Tensor& x, HeightWidth kernel,
                const Pool2dOptions& options) {
  const SlidingWindows windows = checked(op, axes, x, kernel, options);
  if (is_half(x.dtype())) {
    return avg_pool(op, axes, x.to(DType::float32), kernel, options).to(x.dtype());
  }
  const Tensor planes = detail::as_planes(op, axes, x, windows);
  const int64_t items = planes.size(0), channels = planes.size(1), height = windows.kernel[0],
                width = windows.kernel[1];
  const Shape shape{items, channels, windows.count(0, planes.size(2)),
                    windows.count(1, planes.size(3))};
  const Tensor columns = detail::unfold_windows(planes, windows);
  const Tensor y = mean(columns.view({items, channels, height * width, shape[2], shape[3]}), {2});
  return detail::from_planes(axes, y, x);
}

Pool2dOptions for_one_axis(const Pool1dOptions& options) {
  Pool2dOptions both{.padding = options.padding};
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

}  // namespace sash
