#include "windows.h"

#include "../../tensor/autograd/node.h"
#include "../../tensor/factories.h"
#include "../checks.h"

namespace sash {

namespace kernels {
constinit Kernel<void(KernelContext&, const TensorView&, const SlidingWindows&, const TensorView&)>
    unfold_windows{"unfold_windows"};
constinit Kernel<void(KernelContext&, const TensorView&, const SlidingWindows&, const TensorView&)>
    fold_windows{"fold_windows"};
}  // namespace kernels

namespace detail {
namespace {

void check_at_least(const char* op, const char* what, int64_t least, HeightWidth value) {
  for (const int64_t number : {value.height, value.width}) {
    if (number < least) {
      throw ValueError(op, std::string("a ") + what + " of at least " + std::to_string(least),
                       std::to_string(number));
    }
  }
}

}  // namespace

kernels::SlidingWindows checked_windows(const char* op, int axes, HeightWidth kernel,
                                        HeightWidth stride, HeightWidth padding,
                                        HeightWidth dilation) {
  check_at_least(op, "kernel", 1, kernel);
  check_at_least(op, "stride", 1, stride);
  check_at_least(op, "padding", 0, padding);
  check_at_least(op, "dilation", 1, dilation);
  if (axes == 1)
    return {{1, kernel.width}, {1, stride.width}, {0, padding.width}, {1, dilation.width}};
  return {{kernel.height, kernel.width},
          {stride.height, stride.width},
          {padding.height, padding.width},
          {dilation.height, dilation.width}};
}

Tensor as_planes(const char* op, int axes, const Tensor& x,
                 const kernels::SlidingWindows& windows) {
  if (x.rank() != axes + 1 && x.rank() != axes + 2) {
    throw ShapeError(op, axes == 1 ? "x [N, C, L] or [C, L]" : "x [N, C, H, W] or [C, H, W]",
                     to_string(x.shape()));
  }
  for (int axis = 2 - axes; axis < 2; ++axis) {
    const int64_t reach = windows.dilation[axis] * (windows.kernel[axis] - 1) + 1;
    const int64_t extent = x.size(axis - 2), padded = extent + 2 * windows.padding[axis];
    if (padded >= reach) continue;
    throw ShapeError(op, "a window of at most " + std::to_string(padded) + ", the padded extent",
                     std::to_string(reach) + " for " + to_string(x.shape()));
  }
  const Tensor batch = x.rank() == axes + 1 ? x.unsqueeze(0) : x;
  return axes == 1 ? batch.unsqueeze(2) : batch;
}

Tensor from_planes(int axes, const Tensor& y, const Tensor& like) {
  const Tensor batch = axes == 1 ? y.squeeze(2) : y;
  return like.rank() == axes + 1 ? batch.squeeze(0) : batch;
}

Tensor unfold_windows(const Tensor& x, const kernels::SlidingWindows& windows) {
  const int64_t items = x.size(0), channels = x.size(1);
  const int64_t rows = windows.count(0, x.size(2)), columns = windows.count(1, x.size(3));
  const Tensor y =
      empty({items, channels * windows.kernel[0] * windows.kernel[1], rows * columns}, x.options());
  TensorView view = y.tensor_view();
  view.shape = {items, channels, windows.kernel[0], windows.kernel[1], rows, columns};
  view.strides = contiguous_strides(view.shape);
  KernelContext context = kernel_context(x.device());
  kernels::unfold_windows(context, x.tensor_view(), windows, view);
  return record("unfold_windows", {x}, y, [windows, shape = x.shape()](Backward&, const Tensor& g) {
    return Gradients{fold_windows(g, windows, shape)};
  });
}

Tensor fold_windows(const Tensor& columns, const kernels::SlidingWindows& windows,
                    const Shape& shape) {
  const Tensor from = columns.contiguous();
  const Tensor x = empty(shape, columns.options());
  TensorView view = from.tensor_view();
  view.shape = {shape[0],
                shape[1],
                windows.kernel[0],
                windows.kernel[1],
                windows.count(0, shape[2]),
                windows.count(1, shape[3])};
  view.strides = contiguous_strides(view.shape);
  KernelContext context = kernel_context(columns.device());
  kernels::fold_windows(context, view, windows, x.tensor_view());
  return record("fold_windows", {from}, x, [windows](Backward&, const Tensor& g) {
    return Gradients{unfold_windows(g, windows)};
  });
}

}  // namespace detail
}  // namespace sash
