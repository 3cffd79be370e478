#pragma once

#include <cstdint>
#include <iosfwd>
#include <string_view>
#include <type_traits>

#include "export.h"
#include "half.h"

namespace sash {

/// Element types. Ops of several dtypes compute in `result_type` (ops/elementwise/promotion.h).
enum class DType : uint8_t { float32, float64, float16, bfloat16, int32, int64, uint8, boolean };

inline constexpr int kDTypeCount = 8;

/// Bytes of one element.
constexpr int64_t size_of(DType dtype) {
  constexpr int64_t sizes[kDTypeCount] = {4, 8, 2, 2, 4, 8, 1, 1};
  return sizes[static_cast<int>(dtype)];
}

/// "float32", "int64", "bool", ...
SASH_API std::string_view name(DType dtype);
SASH_API std::ostream& operator<<(std::ostream& out, DType dtype);

/// The dtype whose `name` is `text` ("bf16", "f32" and the like are accepted too);
/// throws `ValueError` that lists the names.
SASH_API DType parse_dtype(std::string_view text);

constexpr bool is_floating(DType dtype) { return dtype <= DType::bfloat16; }
constexpr bool is_integral(DType dtype) { return dtype >= DType::int32; }
/// float16 or bfloat16.
constexpr bool is_half(DType dtype) { return dtype == DType::float16 || dtype == DType::bfloat16; }

namespace detail {
template <class T, class... Ts>
inline constexpr bool is_one_of = (std::is_same_v<T, Ts> || ...);
}

/// A C++ type that stores the elements of some dtype. Integers match by size and sign: `long` and
/// `long long` are both int64 where they have 64 bits. `short`, `unsigned`, `size_t`, `char` and
/// `long double` match none.
template <class T>
concept Element = detail::is_one_of<T, float, double, float16, bfloat16, int, long, long long,
                                    unsigned char, bool>;

/// The dtype of a C++ element type; other types do not compile.
template <Element T>
inline constexpr DType dtype_of = sizeof(T) == 8 ? DType::int64 : DType::int32;
template <>
inline constexpr DType dtype_of<float> = DType::float32;
template <>
inline constexpr DType dtype_of<double> = DType::float64;
template <>
inline constexpr DType dtype_of<float16> = DType::float16;
template <>
inline constexpr DType dtype_of<bfloat16> = DType::bfloat16;
template <>
inline constexpr DType dtype_of<unsigned char> = DType::uint8;
template <>
inline constexpr DType dtype_of<bool> = DType::boolean;

}  // namespace sash
