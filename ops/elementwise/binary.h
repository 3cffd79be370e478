#pragma once

#include "../../tensor/tensor.h"
#include "unary.h"

/// Arithmetic of two tensors, differentiable any number of times. Shapes broadcast (NumPy's rules);
/// operands of several dtypes, and scalars, are computed in their `result_type` (promotion.h).
/// `DeviceError` names two devices that differ. Functions take floating dtypes; functions marked
/// (integers) also take integers, which wrap; functions marked (bool) also take bool. `DTypeError`
/// for other dtypes.
namespace sash {

/// a + b (integers); a or b (bool).
SASH_API Tensor add(const Tensor& a, const Tensor& b);
/// a - b (integers).
SASH_API Tensor sub(const Tensor& a, const Tensor& b);
/// a b (integers); a and b (bool).
SASH_API Tensor mul(const Tensor& a, const Tensor& b);
/// a / b; of integers and bool in `default_dtype()`.
SASH_API Tensor div(const Tensor& a, const Tensor& b);
/// a^b (integers: b < 0 gives the whole part of it, and 0 for a = 0). The derivative to b is
/// a^b ln a, and 0 where a = 0 and b >= 0 (-infinity where b < 0).
SASH_API Tensor pow(const Tensor& a, const Tensor& b);
/// The angle in [-pi, pi] of the point (b, a) in the plane; of integers and bool in
/// `default_dtype()`. The gradient at (0, 0) is NaN.
SASH_API Tensor atan2(const Tensor& a, const Tensor& b);
/// The greater of two elements (integers, bool); NaN if either is. Where both are equal each
/// receives half of the gradient, where one is NaN all of it.
SASH_API Tensor maximum(const Tensor& a, const Tensor& b);
/// The lesser of two elements (integers, bool); otherwise like `maximum`.
SASH_API Tensor minimum(const Tensor& a, const Tensor& b);
/// a - b floor(a / b) (integers): it has the sign of b. 0 for an integer b of 0.
SASH_API Tensor remainder(const Tensor& a, const Tensor& b);
/// floor(a / b) (integers), with derivative 0. 0 for an integer b of 0.
SASH_API Tensor floor_divide(const Tensor& a, const Tensor& b);

// With a scalar as one operand. `ValueError` if the dtype of the result cannot hold the scalar, or
// if integers are divided by 0. unary.h has `add`, `mul`, `div` and `pow` of a tensor and a scalar.

SASH_API Tensor sub(const Tensor& a, Scalar b);
SASH_API Tensor sub(Scalar a, const Tensor& b);
SASH_API Tensor div(Scalar a, const Tensor& b);
SASH_API Tensor pow(Scalar a, const Tensor& b);
SASH_API Tensor maximum(const Tensor& a, Scalar b);
SASH_API Tensor minimum(const Tensor& a, Scalar b);
SASH_API Tensor remainder(const Tensor& a, Scalar b);
SASH_API Tensor remainder(Scalar a, const Tensor& b);
SASH_API Tensor floor_divide(const Tensor& a, Scalar b);

}  // namespace sash
