#pragma once

#include "../../tensor/tensor.h"

namespace sash {

/// The matrix product c = a b, with NumPy's rules: a [..., M, K] times b [..., K, N] is
/// c [..., M, N], and the batch axes broadcast. A one-dimensional a is taken as a row [1, K], a
/// one-dimensional b as a column [K, 1], and that axis is dropped from the result.
///
/// Floating dtypes and integers, whose products wrap. Transposed operands of floating dtypes are
/// read in place. For K = 0 the result is zero. `ShapeError` unless the inner extents agree and the
/// batch axes broadcast.
SASH_API Tensor matmul(const Tensor& a, const Tensor& b);

/// `matmul` of a [B, M, K] and b [B, K, N] only: `ShapeError` for other ranks or different batches.
SASH_API Tensor bmm(const Tensor& a, const Tensor& b);

/// c_ij = a_i b_j for a [M] and b [N], in their `result_type`.
SASH_API Tensor outer(const Tensor& a, const Tensor& b);

namespace detail {
/// All rows of x [..., N] as one matrix; a view where the strides allow it.
SASH_API Tensor flatten_rows(const Tensor& x);
}  // namespace detail

}  // namespace sash
