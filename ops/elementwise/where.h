#pragma once

#include "../../tensor/tensor.h"

/// Choosing between elements by a bool tensor; any dtype, gradients for floating ones.
namespace sash {

/// cond ? a : b in their `result_type` (promotion.h), element by element; shapes broadcast.
/// `DTypeError` unless `cond` is bool.
SASH_API Tensor where(const Tensor& cond, const Tensor& a, const Tensor& b);
SASH_API Tensor where(const Tensor& cond, const Tensor& a, Scalar b);
SASH_API Tensor where(const Tensor& cond, Scalar a, const Tensor& b);
/// int64 if both scalars are integers, else `default_dtype()`.
SASH_API Tensor where(const Tensor& cond, Scalar a, Scalar b);

/// mask ? value : x, element by element; `mask` is bool and broadcasts to x's shape (`ShapeError`
/// if it cannot). No gradient flows to the filled elements. The result has x's dtype:
/// `ValueError` if that cannot hold the value, as int64 cannot 0.5.
SASH_API Tensor masked_fill(const Tensor& x, const Tensor& mask, Scalar value);

}  // namespace sash
