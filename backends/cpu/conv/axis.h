#pragma once

#include <algorithm>
#include <cstdint>

#include "../../../ops/kernels/conv.h"

namespace sash::cpu {

/// One axis of the windows over an axis of x.
struct Axis {
  int64_t extent, kernel, count, stride, padding, dilation;

  Axis(const kernels::SlidingWindows& windows, int axis, int64_t x_extent)
      : extent(x_extent),
        kernel(windows.kernel[axis]),
        count(windows.count(axis, x_extent)),
        stride(windows.stride[axis]),
        padding(windows.padding[axis]),
        dilation(windows.dilation[axis]) {}

  /// Where element `i` of window `u` lies; possibly outside [0, extent).
  int64_t at(int64_t u, int64_t i) const { return u * stride + i * dilation - padding; }
  struct Range {
    int64_t first, past;
    int64_t size() const { return past - first; }
  };
  /// The windows [first, past) whose element `i` is inside.
  Range inside(int64_t i) const {
    const int64_t start = i * dilation - padding;  // of window 0
    const int64_t first = start >= 0 ? 0 : (-start - 1) / stride + 1;
    const int64_t past = start >= extent ? 0 : (extent - start - 1) / stride + 1;
    return {std::min(first, count), std::clamp(past, std::min(first, count), count)};
  }
  /// Elements [first, past), outside which none is inside in a window from `u` to `last`.
  Range elements(int64_t u, int64_t last) const {
    const int64_t before = padding - last * stride, to = extent + padding - u * stride;
    const int64_t first = before <= 0 ? 0 : (before - 1) / dilation + 1;
    const int64_t past = to <= 0 ? 0 : (to - 1) / dilation + 1;
    return {std::min(first, kernel), std::clamp(past, std::min(first, kernel), kernel)};
  }
  Range elements() const { return elements(0, count - 1); }
};

}  // namespace sash::cpu
