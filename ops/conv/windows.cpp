#include "windows.h"

#include <algorithm>

#include "../checks.h"

namespace sash {

namespace kernels {
constinit decltype(unfold_windows) unfold_windows{"unfold_windows"};
constinit decltype(fold_windows) fold_windows{"fold_windows"};
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

Tensor as_planes(const char* op, int axes, const Tensor& x, kernels::SlidingWindows& windows) {
  if (x.rank() != axes + 1 && x.rank() != axes + 2) {
    throw ShapeError(op, axes == 1 ? "x [N, C, L] or [C, L]" : "x [N, C, H, W] or [C, H, W]",
                     to_string(x.shape()));
  }
  for (int axis = 2 - axes; axis < 2; ++axis) {
    const int64_t padding = windows.padding[axis];
    int64_t padded = 0, reach = 0;
    if (__builtin_mul_overflow(padding, 2, &padded) ||
        __builtin_add_overflow(padded, x.size(axis - 2), &padded)) {
      throw ShapeError(op, "padded extents below 2^63",
                       to_string(x.shape()) + " with a padding of " + std::to_string(padding));
    }
    const bool huge =
        __builtin_mul_overflow(windows.dilation[axis], windows.kernel[axis] - 1, &reach) ||
        __builtin_add_overflow(reach, 1, &reach);
    if (huge || padded < reach) {
      throw ShapeError(
          op, "a window of at most " + std::to_string(padded) + ", the padded extent",
          (huge ? "2^63 or more" : std::to_string(reach)) + " for " + to_string(x.shape()));
    }
    windows.stride[axis] = std::min(windows.stride[axis], padded);  // no second window either way
    windows.dilation[axis] = std::min(windows.dilation[axis], padded);  // nor a second element
  }
  const Tensor batch = x.rank() == axes + 1 ? x.unsqueeze(0) : x;
  return axes == 1 ? batch.unsqueeze(2) : batch;
}

Tensor from_planes(int axes, const Tensor& y, const Tensor& like) {
  const Tensor batch = axes == 1 ? y.squeeze(2) : y;
  return like.rank() == axes + 1 ? batch.squeeze(0) : batch;
}

}  // namespace detail
}  // namespace sash
