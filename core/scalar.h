#pragma once

#include <concepts>
#include <cstdint>

#include "dtype.h"

namespace sash {

/// Whether `value`, cut to an integer, is in the range of `dtype`. Always true for bool (a value
/// that is not 0 becomes true) and for floating dtypes (which round).
template <class T>
constexpr bool holds(DType dtype, T value) {
  if (!is_integral(dtype) || dtype == DType::boolean) return true;
  if constexpr (std::floating_point<T>) {
    // Both bounds are exact doubles; false for NaN.
    return value >= -0x1p63 && value < 0x1p63 && holds(dtype, static_cast<int64_t>(value));
  } else {
    const auto x = static_cast<int64_t>(value);
    if (dtype == DType::int32) return x >= INT32_MIN && x <= INT32_MAX;
    return dtype == DType::int64 || (x >= 0 && x <= UINT8_MAX);
  }
}

/// A number as an argument: an exact integer or a double, converted to the tensor's dtype in use.
class Scalar {
 public:
  template <std::floating_point T>
  Scalar(T value) : floating_(static_cast<double>(value)), integer_(static_cast<int64_t>(0)) {}
  template <std::integral T>
  Scalar(T value)
      : floating_(static_cast<double>(value)),
        integer_(static_cast<int64_t>(value)),
        is_integer_(std::signed_integral<T> || integer_ >= 0) {}  // beyond 2^63 - 1 as a double

  bool is_integer() const { return is_integer_; }
  double to_double() const { return floating_; }
  /// Whether `dtype` holds the value.
  bool fits(DType dtype) const {
    return is_integer_ ? holds(dtype, integer_) : holds(dtype, floating_);
  }

  /// The value as `T`; floating values truncate towards zero on the way to an integer.
  template <class T>
  T to() const {
    if constexpr (std::integral<T>) {
      return is_integer_ ? static_cast<T>(integer_) : static_cast<T>(floating_);
    } else if constexpr (std::floating_point<T>) {
      return static_cast<T>(floating_);
    } else {
      return T(static_cast<float>(floating_));
    }
  }

 private:
  double floating_;
  int64_t integer_;
  bool is_integer_ = false;
};

}  // namespace sash
