#pragma once

#include "topk.h"

/// Order and extrema along one axis. Floating dtypes and integers; NaN counts as the largest
/// number, but wins in `min` too. The gradient of `values` goes to the elements that `indices`
/// names. `ShapeError` for a tensor without axes, `IndexError` for an axis that it does not have.
namespace sash {

/// The elements along `axis` in ascending or descending order. The sort is stable: equal elements
/// keep their order.
SASH_API Chosen sort(const Tensor& x, int64_t axis = -1, bool descending = false);

/// The indices of `sort`.
SASH_API Tensor argsort(const Tensor& x, int64_t axis = -1, bool descending = false);

/// The largest (smallest) element along `axis`, and the lowest index where it is; the first NaN
/// wins. Unlike `amax` and `amin`, the whole gradient goes to that element. `ShapeError` if the
/// axis is empty.
SASH_API Chosen max(const Tensor& x, int64_t axis, bool keepdim = false);
SASH_API Chosen min(const Tensor& x, int64_t axis, bool keepdim = false);

/// The largest (smallest) of all elements: `amax` (`amin`) over all axes.
SASH_API Tensor max(const Tensor& x);
SASH_API Tensor min(const Tensor& x);

}  // namespace sash
