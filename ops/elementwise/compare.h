#pragma once

#include "../../tensor/tensor.h"

/// Comparisons and logic, element by element: the result is bool and has no gradient. Shapes
/// broadcast; dtypes are any, and elements are compared in their `result_type` (promotion.h).
/// `DeviceError` unless both tensors are on one device. Comparing with NaN gives false, except for
/// `ne`.
namespace sash {

SASH_API Tensor eq(const Tensor& a, const Tensor& b);  ///< a == b
SASH_API Tensor ne(const Tensor& a, const Tensor& b);  ///< a != b
SASH_API Tensor lt(const Tensor& a, const Tensor& b);  ///< a < b
SASH_API Tensor le(const Tensor& a, const Tensor& b);  ///< a <= b
SASH_API Tensor gt(const Tensor& a, const Tensor& b);  ///< a > b
SASH_API Tensor ge(const Tensor& a, const Tensor& b);  ///< a >= b

/// A floating tensor's dtype rounds the scalar; integers are compared with integers exactly, with a
/// floating scalar in `default_dtype()`.
SASH_API Tensor eq(const Tensor& x, Scalar value);
SASH_API Tensor ne(const Tensor& x, Scalar value);
SASH_API Tensor lt(const Tensor& x, Scalar value);
SASH_API Tensor le(const Tensor& x, Scalar value);
SASH_API Tensor gt(const Tensor& x, Scalar value);
SASH_API Tensor ge(const Tensor& x, Scalar value);

/// For bool tensors; `DTypeError` for other dtypes.
SASH_API Tensor logical_and(const Tensor& a, const Tensor& b);
SASH_API Tensor logical_or(const Tensor& a, const Tensor& b);
SASH_API Tensor logical_not(const Tensor& x);

/// Whether an element is NaN; floating dtypes.
SASH_API Tensor isnan(const Tensor& x);
/// Whether an element is neither NaN nor infinite; floating dtypes.
SASH_API Tensor isfinite(const Tensor& x);
/// Whether an element is infinite; floating dtypes.
SASH_API Tensor isinf(const Tensor& x);

struct CloseOptions {
  double rtol = 1e-5;
  double atol = 1e-8;
  bool equal_nan = false;  ///< whether NaN is close to NaN
};

/// Whether |a - b| <= atol + rtol |b|, or a = b. Shapes broadcast; both have one dtype, any.
/// `ValueError` for a negative tolerance.
SASH_API Tensor isclose(const Tensor& a, const Tensor& b, const CloseOptions& options = {});
/// Whether all elements are. Waits for the device.
SASH_API bool allclose(const Tensor& a, const Tensor& b, const CloseOptions& options = {});

}  // namespace sash
