#pragma once

#include <utility>

#include "../../tensor/tensor.h"

/// Reductions. `axes` may be negative; an empty list means all axes. `keepdim` keeps reduced axes
/// with extent 1. `Tensor::sum` and `Tensor::mean` are the same functions.
namespace sash {

/// y = sum_i x_i. Sums of integers and bool are int64.
SASH_API Tensor sum(const Tensor& x, const Dims& axes = {}, bool keepdim = false);

/// y = (1 / n) sum_i x_i. `DTypeError` unless floating; the mean of nothing is NaN.
SASH_API Tensor mean(const Tensor& x, const Dims& axes = {}, bool keepdim = false);

/// y = (1 / (n - correction)) sum_i (x_i - mean)^2, with the divisor 0 where n <= correction: then
/// infinity, or NaN if every x_i is the mean. `DTypeError` unless floating.
SASH_API Tensor var(const Tensor& x, const Dims& axes = {}, int64_t correction = 1,
                    bool keepdim = false);

/// y = max_i x_i (min_i x_i); NaN propagates. The gradient is shared equally between ties.
/// Any dtype; the maximum of bool is `any`, the minimum `all`. `ShapeError` if a reduced axis is
/// empty.
SASH_API Tensor amax(const Tensor& x, const Dims& axes = {}, bool keepdim = false);
SASH_API Tensor amin(const Tensor& x, const Dims& axes = {}, bool keepdim = false);

/// int64 index of the largest (smallest) element along `axis`; ties give the lowest index, and the
/// first NaN wins. Not differentiable.
SASH_API Tensor argmax(const Tensor& x, int64_t axis = -1, bool keepdim = false);
SASH_API Tensor argmin(const Tensor& x, int64_t axis = -1, bool keepdim = false);

/// y = log sum_i exp(x_i), shifted by the maximum; -inf where every element is.
SASH_API Tensor logsumexp(const Tensor& x, const Dims& axes = {}, bool keepdim = false);

/// y_i = sum of x_0 .. x_i along `axis`. Sums of integers and bool are int64.
SASH_API Tensor cumsum(const Tensor& x, int64_t axis);

/// y_i = product of x_0 .. x_i along `axis`, in int64 for integers and bool.
SASH_API Tensor cumprod(const Tensor& x, int64_t axis);

/// y = x_0 x_1 ...; integers and bool are multiplied in int64. The product of nothing is 1.
SASH_API Tensor prod(const Tensor& x, const Dims& axes = {}, bool keepdim = false);

/// Whether any (every) x_i is not 0, as bool; NaN is not 0. Any dtype. Not differentiable.
SASH_API Tensor any(const Tensor& x, const Dims& axes = {}, bool keepdim = false);
SASH_API Tensor all(const Tensor& x, const Dims& axes = {}, bool keepdim = false);

namespace composite {
/// `cumprod` from plain ops.
SASH_API Tensor cumprod(const Tensor& x, int64_t axis);
}  // namespace composite

/// The inverse of broadcasting: sums `x` over the axes along which `shape` was expanded. Where that
/// is none, the result shares memory with `x`: writing to it in place writes to `x`. `ShapeError`
/// unless `shape` broadcasts to the shape of `x`.
SASH_API Tensor sum_to(const Tensor& x, const Shape& shape);

}  // namespace sash
