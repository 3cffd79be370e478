#pragma once

#include "../../tensor/tensor.h"

namespace sash {

/// The largest elements and where they are.
struct TopK {
  Tensor values;   ///< descending, dtype of x
  Tensor indices;  ///< int64, the same shape
};

/// The k largest elements along `axis`, which then has extent k, in descending order. NaN counts as
/// the largest number; equal elements come in the order of their indices, so the result is the same
/// on every backend. Floating dtypes (the halves on CUDA), int32 and int64. The gradient of
/// `values` goes to the elements chosen.
///
/// `ValueError` unless 0 <= k <= the extent, `ShapeError` for a tensor without axes, `DTypeError`.
SASH_API TopK topk(const Tensor& x, int64_t k, int64_t axis = -1);

}  // namespace sash
