#pragma once

#include "../../tensor/tensor.h"

/// Indexing by int64 tensors. Negative indices count from the end, except in `one_hot`. Throws
/// `IndexError` naming the first index outside its axis and its position, `DTypeError` for indices
/// that are not int64, `ShapeError` for shapes that do not fit.
namespace sash {

/// y[i][j][k] = x[i][index[i][j][k]][k] for axis 1, likewise for others. index has x's rank and is
/// no longer than x on any other axis; y has its shape.
SASH_API Tensor gather(const Tensor& x, int64_t axis, const Tensor& index);

/// A copy of x with src[i][j][k] added at [i][index[i][j][k]][k] for axis 1, likewise for others:
/// the gradient of `gather`. index has the rank of x and src, and is no longer than src on any axis
/// and than x on any other axis; elements of src beyond it are left out. The order of additions is
/// fixed.
SASH_API Tensor scatter_add(const Tensor& x, int64_t axis, const Tensor& index, const Tensor& src);

/// A copy of x with src[i][j][k] in the place of [i][index[i][j][k]][k] for axis 1, likewise for
/// others; shapes as for `scatter_add`. Of several elements for one place the last along the axis
/// stays, and it alone receives a gradient. x and src have one dtype, any.
SASH_API Tensor scatter(const Tensor& x, int64_t axis, const Tensor& index, const Tensor& src);

/// A copy of x. Slice i of src along `axis` is added to slice index[i] of the copy, in order. index
/// has one axis.
SASH_API Tensor index_add(const Tensor& x, int64_t axis, const Tensor& index, const Tensor& src);

/// The slices index[0], index[1], ... of x along `axis`. index has one axis.
SASH_API Tensor index_select(const Tensor& x, int64_t axis, const Tensor& index);

/// int64 zeros [..., classes] with a 1 at each index [...].
SASH_API Tensor one_hot(const Tensor& index, int64_t classes);

}  // namespace sash
