#pragma once

#include <string>
#include <type_traits>

#include "../tensor/tensor.h"

/// Argument checks that ops, modules and optimizers share. The errors name op, expectation and what
/// it got.
namespace sash {

/// `ValueError` if `x` is undefined; `what` names the argument.
inline void check_defined(const char* op, const Tensor& x, const char* what = "a tensor") {
  if (!x.defined()) throw ValueError(op, what, "an undefined tensor");
}

/// `DeviceError` naming both devices if they differ.
inline void check_same_device(const char* op, const Tensor& a, const Tensor& b) {
  if (a.device() == b.device()) return;
  throw DeviceError(op, "tensors on one device",
                    to_string(a.device()) + " and " + to_string(b.device()));
}

/// `DTypeError` naming both dtypes if they differ: for products and fused ops.
inline void check_same_dtype(const char* op, const Tensor& a, const Tensor& b) {
  if (a.dtype() == b.dtype()) return;
  throw DTypeError(op, "tensors of one dtype",
                   std::string(name(a.dtype())) + " and " + std::string(name(b.dtype())));
}

/// "[2, 3] and [4]": the shapes of two tensors, for errors.
inline std::string shapes_of(const Tensor& a, const Tensor& b) {
  return to_string(a.shape()) + " and " + to_string(b.shape());
}

/// `ShapeError` naming both shapes if they differ.
inline void check_same_shape(const char* op, const Tensor& a, const Tensor& b) {
  if (a.shape() == b.shape()) return;
  throw ShapeError(op, "tensors of one shape", shapes_of(a, b));
}

/// Both defined, on one device and of one dtype.
inline void check_compatible(const char* op, const Tensor& a, const Tensor& b) {
  check_defined(op, a);
  check_defined(op, b);
  check_same_device(op, a, b);
  check_same_dtype(op, a, b);
}

/// `DTypeError` unless `x` has exactly the dtype `expected`; `what` names the argument.
inline void check_dtype(const char* op, const Tensor& x, DType expected,
                        const char* what = nullptr) {
  if (x.dtype() == expected) return;
  const std::string dtype(name(expected));
  throw DTypeError(op, what ? what + (" of " + dtype) : dtype, name(x.dtype()));
}

/// `ValueError` if `x` is undefined, `DTypeError` unless it is floating.
inline void check_floating(const char* op, const Tensor& x) {
  check_defined(op, x);
  if (!is_floating(x.dtype())) throw DTypeError(op, "a floating dtype", name(x.dtype()));
}

/// `ValueError` if `x` is undefined, `DTypeError` if it is bool.
inline void check_not_bool(const char* op, const Tensor& x) {
  check_defined(op, x);
  if (x.dtype() == DType::boolean) throw DTypeError(op, "a dtype of numbers", name(x.dtype()));
}

/// `ShapeError` if `x` has fewer than `rank` axes.
inline void check_min_rank(const char* op, const Tensor& x, int rank) {
  if (x.rank() >= rank) return;
  throw ShapeError(op, "at least " + std::to_string(rank) + (rank == 1 ? " axis" : " axes"),
                   to_string(x.shape()));
}

/// `ShapeError` unless `x` has exactly `rank` axes.
inline void check_rank(const char* op, const Tensor& x, int rank) {
  if (x.rank() == rank) return;
  throw ShapeError(op, std::to_string(rank) + (rank == 1 ? " axis" : " axes"),
                   to_string(x.shape()));
}

/// `ShapeError` unless `x` has the shape `expected`.
inline void check_shape(const char* op, const Tensor& x, const Shape& expected) {
  if (x.shape() == expected) return;
  throw ShapeError(op, "shape " + to_string(expected), to_string(x.shape()));
}

/// Throws unless `parameter` is undefined, or of x's device and dtype and of shape `expected`.
inline void check_parameter(const char* op, const Tensor& x, const Tensor& parameter,
                            const Shape& expected) {
  if (!parameter.defined()) return;
  check_compatible(op, x, parameter);
  check_shape(op, parameter, expected);
}

/// `ValueError` unless `value` is at least 0; `what` names it: "a limit".
template <class T>
void check_not_negative(std::string_view op, const std::string& what, T value) {
  if (value >= 0) return;
  if constexpr (std::is_integral_v<T>) {
    throw ValueError(op, what + " of at least 0", std::to_string(value));
  } else {
    throw ValueError(op, what + " of at least 0", to_text(value));
  }
}

/// `ValueError` unless `p` is in [0, 1]; `what` names it: "a probability".
inline void check_probability(std::string_view op, const std::string& what, double p) {
  if (!(p >= 0 && p <= 1)) throw ValueError(op, what + " in [0, 1]", to_text(p));
}

}  // namespace sash
