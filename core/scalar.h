#pragma once

#include <concepts>
#include <cstdint>

namespace sash {

/// A number on its way into a tensor: keeps integers exact, takes the tensor's dtype on arrival.
class Scalar {
 public:
  template <std::floating_point T>
  Scalar(T value) : floating_(static_cast<double>(value)), integer_(static_cast<int64_t>(0)) {}
  template <std::integral T>
  Scalar(T value)
      : floating_(static_cast<double>(value)),
        integer_(static_cast<int64_t>(value)),
        is_integer_(true) {}

  bool is_integer() const { return is_integer_; }
  double to_double() const { return floating_; }

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
