#pragma once

/// What a row of the table of elementwise ops says of its op.
namespace sash::op {

enum class Dtypes {
  numbers,            ///< floating, int32 and int64; uint8 is computed in int32
  floating,           ///< floating only
  floating_or_int64,  ///< floating and int64, in which all integers are computed
  cast_to_floating,   ///< floating; integers and bool are cast to `default_dtype()` first
  boolean,            ///< bool only
  all,
};

/// What the backward pass of an op of one tensor keeps.
enum class Saves { nothing, input, output };

/// The operands that a gradient is computed from.
struct Reads {
  bool a = false, b = false;
};

inline constexpr Reads kBoth{.a = true, .b = true};

struct UnaryRow {
  const char* name;
  Dtypes dtypes;
  Saves saves = Saves::nothing;
};

struct BinaryRow {
  const char* name;
  Dtypes dtypes;
  Reads a_gradient{};
  Reads b_gradient{};
};

template <class X>
struct ElementOf {
  using type = X;
};
template <class X>
requires requires { typename X::Scalar; }
struct ElementOf<X> {
  using type = typename X::Scalar;
};
/// The type of a number, or of the elements of an Eigen array.
template <class X>
using element_t = typename ElementOf<X>::type;

}  // namespace sash::op
