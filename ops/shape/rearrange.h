#pragma once

#include "../../tensor/tensor.h"

/// Copies of a tensor in another order, repeated or padded; any dtype.
namespace sash {

/// The elements in reverse order along each of `axes`. `ValueError` if an axis comes twice.
SASH_API Tensor flip(const Tensor& x, const Dims& axes);

/// Element i goes to i + shift along each axis; what leaves at one end comes in at the other.
/// `ShapeError` unless there is a shift for each axis.
SASH_API Tensor roll(const Tensor& x, const Dims& shifts, const Dims& axes);

/// `counts[i]` copies of x one after the other along axis i, of which there may be new ones in
/// front: `repeat(x, {2, 1})` of x [3] is [2, 3]. `ShapeError` for fewer counts than axes,
/// `ValueError` for negative ones.
SASH_API Tensor repeat(const Tensor& x, const Dims& counts);

/// Each slice along `axis` `count` times in a row. `ValueError` for a negative count.
SASH_API Tensor repeat_interleave(const Tensor& x, int64_t count, int64_t axis);

/// x with `value` around it. `widths` are {before, after} of the last axis, then of the one before
/// it, and so on, as in `torch.nn.functional.pad`; negative widths cut off. `ShapeError` unless
/// they are pairs, of at most as many axes as x has, that leave no extent negative; `ValueError`
/// if x's dtype cannot hold the value.
SASH_API Tensor pad(const Tensor& x, const Dims& widths, Scalar value = 0);

/// Of x [N], a matrix with x on a diagonal and zeros elsewhere; of x [R, C], a copy of a diagonal.
/// `diagonal` counts from the main one, upwards. `ShapeError` for other ranks, `ValueError` for a
/// diagonal outside the matrix.
SASH_API Tensor diag(const Tensor& x, int64_t diagonal = 0);

/// x with zeros above (below) a diagonal of its last two axes: element [i][j] stays where
/// j - i <= diagonal (>= diagonal). `ShapeError` for fewer than two axes.
SASH_API Tensor tril(const Tensor& x, int64_t diagonal = 0);
SASH_API Tensor triu(const Tensor& x, int64_t diagonal = 0);

}  // namespace sash
