#pragma once

#include "../../tensor/tensor.h"

namespace sash {

/// Elements chosen along an axis, and their indices.
struct Chosen {
  Tensor values;   ///< dtype of x
  Tensor indices;  ///< int64, the same shape
};

/// The k largest elements along `axis` in descending order, or the k smallest in ascending order;
/// the axis then has extent k. NaN counts as the largest number; equal elements come in the order
/// of their indices, so the result is the same on every backend. Floating dtypes and integers.
/// The gradient of `values` goes to the elements chosen.
///
/// `ValueError` unless 0 <= k <= the extent, `ShapeError` for a tensor without axes, `DTypeError`.
SASH_API Chosen topk(const Tensor& x, int64_t k, int64_t axis = -1, bool largest = true);

}  // namespace sash
