#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "../dtype.h"
#include "../error.h"

namespace sash {

/// Carries a type as a value: `dispatch_floating(dtype, op, [&]<class T>(TypeTag<T>) { ... })`.
template <class T>
struct TypeTag {
  using type = T;
};

namespace detail {

template <class... Ts, class F>
void dispatch_over(DType dtype, std::string_view op, F&& f) {
  const bool found = ((dtype == dtype_of<Ts> ? (f(TypeTag<Ts>{}), true) : false) || ...);
  if (found) return;
  std::string expected;
  ((expected += (expected.empty() ? "" : " or ") + std::string(name(dtype_of<Ts>))), ...);
  throw DTypeError(op, expected, name(dtype));
}

}  // namespace detail

/// float32 and float64: calls `f` with the element type; `DTypeError` naming `op` for any other.
template <class F>
void dispatch_floating(DType dtype, std::string_view op, F&& f) {
  detail::dispatch_over<float, double>(dtype, op, f);
}

/// Every floating type, for kernels that read and write halves themselves.
template <class F>
void dispatch_with_halves(DType dtype, std::string_view op, F&& f) {
  detail::dispatch_over<float, double, float16, bfloat16>(dtype, op, f);
}

/// Every floating type, int32 and int64.
template <class F>
void dispatch_ordered(DType dtype, std::string_view op, F&& f) {
  detail::dispatch_over<float, double, float16, bfloat16, int64_t, int32_t>(dtype, op, f);
}

/// float32, float64, int32 and int64.
template <class F>
void dispatch_numeric(DType dtype, std::string_view op, F&& f) {
  detail::dispatch_over<float, double, int64_t, int32_t>(dtype, op, f);
}

/// Every storage type.
template <class F>
void dispatch_all(DType dtype, std::string_view op, F&& f) {
  detail::dispatch_over<float, double, float16, bfloat16, int32_t, int64_t, uint8_t, bool>(dtype,
                                                                                           op, f);
}

/// Calls `f` with the unsigned integer type of an element's size: for kernels that only move
/// elements.
template <class F>
void dispatch_words(DType dtype, F&& f) {
  switch (size_of(dtype)) {
    case 1:
      return f(TypeTag<uint8_t>{});
    case 2:
      return f(TypeTag<uint16_t>{});
    case 4:
      return f(TypeTag<uint32_t>{});
    default:
      return f(TypeTag<uint64_t>{});
  }
}

}  // namespace sash
