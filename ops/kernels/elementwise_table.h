#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <type_traits>

#include "../../core/export.h"
#include "elementwise_row.h"

/// The table of elementwise ops: one struct, a row, per op.
///
///     row          name, dtypes, and what the derivative reads
///     operator()   the formula, on one element or on an array of a backend (Eigen)
///     backward     the derivative, on tensors
///
/// Each backend makes a kernel for every row of the lists at the end, and `ops/elementwise` the
/// public functions. Rows are templates that find functions of their argument's type by its
/// namespace, so this header needs neither tensors nor a backend.
namespace sash::op {

using std::abs, std::atan2, std::ceil, std::copysign, std::cos, std::erf, std::exp, std::expm1,
    std::floor, std::fmod, std::log, std::log1p, std::log2, std::pow, std::rint, std::sin,
    std::sqrt, std::tanh;

// ---- one tensor: backward(g, what is saved) is the gradient of x

struct Neg {
  static constexpr UnaryRow row{"neg", Dtypes::numbers};
  SASH_HOST_DEVICE auto operator()(const auto& x) const { return -x; }
  static auto backward(const auto& g) { return neg(g); }
};
struct Abs {
  static constexpr UnaryRow row{"abs", Dtypes::numbers, Saves::input};
  SASH_HOST_DEVICE auto operator()(const auto& x) const { return abs(x); }
  static auto backward(const auto& g, const auto& x) { return g * sign(x); }
};
struct Sign {
  static constexpr UnaryRow row{"sign", Dtypes::numbers};
  template <class T>
  SASH_HOST_DEVICE T operator()(const T& x) const {
    return x != x ? x : static_cast<T>(static_cast<int>(x > T(0)) - static_cast<int>(x < T(0)));
  }
  static auto backward(const auto& g) { return zeros_like(g); }
};
struct Square {
  static constexpr UnaryRow row{"square", Dtypes::numbers, Saves::input};
  SASH_HOST_DEVICE auto operator()(const auto& x) const { return x * x; }
  static auto backward(const auto& g, const auto& x) { return g * (x * 2); }
};
struct Exp {
  static constexpr UnaryRow row{"exp", Dtypes::cast_to_floating, Saves::output};
  SASH_HOST_DEVICE auto operator()(const auto& x) const { return exp(x); }
  static auto backward(const auto& g, const auto& y) { return g * y; }
};
struct Log {
  static constexpr UnaryRow row{"log", Dtypes::cast_to_floating, Saves::input};
  SASH_HOST_DEVICE auto operator()(const auto& x) const { return log(x); }
  static auto backward(const auto& g, const auto& x) { return g / x; }
};
struct Log2 {
  static constexpr UnaryRow row{"log2", Dtypes::cast_to_floating, Saves::input};
  SASH_HOST_DEVICE auto operator()(const auto& x) const { return log2(x); }
  static auto backward(const auto& g, const auto& x) { return g / (x * std::numbers::ln2); }
};
struct Log1p {
  static constexpr UnaryRow row{"log1p", Dtypes::cast_to_floating, Saves::input};
  SASH_HOST_DEVICE auto operator()(const auto& x) const { return log1p(x); }
  static auto backward(const auto& g, const auto& x) { return g / (x + 1); }
};
struct Expm1 {
  static constexpr UnaryRow row{"expm1", Dtypes::cast_to_floating, Saves::output};
  SASH_HOST_DEVICE auto operator()(const auto& x) const { return expm1(x); }
  static auto backward(const auto& g, const auto& y) { return g * (y + 1); }
};
struct Sqrt {
  static constexpr UnaryRow row{"sqrt", Dtypes::cast_to_floating, Saves::output};
  SASH_HOST_DEVICE auto operator()(const auto& x) const { return sqrt(x); }
  static auto backward(const auto& g, const auto& y) { return g / (y * 2); }
};
struct Rsqrt {
  static constexpr UnaryRow row{"rsqrt", Dtypes::cast_to_floating, Saves::output};
  SASH_HOST_DEVICE auto operator()(const auto& x) const { return 1 / sqrt(x); }
  static auto backward(const auto& g, const auto& y) { return g * (pow(y, 3) * -0.5); }
};
struct Reciprocal {
  static constexpr UnaryRow row{"reciprocal", Dtypes::cast_to_floating, Saves::output};
  template <class X>
  SASH_HOST_DEVICE auto operator()(const X& x) const {
    return element_t<X>(1) / x;
  }
  static auto backward(const auto& g, const auto& y) { return neg(g * square(y)); }
};
struct Sin {
  static constexpr UnaryRow row{"sin", Dtypes::cast_to_floating, Saves::input};
  SASH_HOST_DEVICE auto operator()(const auto& x) const { return sin(x); }
  static auto backward(const auto& g, const auto& x) { return g * cos(x); }
};
struct Cos {
  static constexpr UnaryRow row{"cos", Dtypes::cast_to_floating, Saves::input};
  SASH_HOST_DEVICE auto operator()(const auto& x) const { return cos(x); }
  static auto backward(const auto& g, const auto& x) { return neg(g * sin(x)); }
};
struct Tanh {
  static constexpr UnaryRow row{"tanh", Dtypes::cast_to_floating, Saves::output};
  SASH_HOST_DEVICE auto operator()(const auto& x) const { return tanh(x); }
  static auto backward(const auto& g, const auto& y) { return g * (1 - square(y)); }
};
// Eigen's logistic loses digits below -8.
struct Sigmoid {
  static constexpr UnaryRow row{"sigmoid", Dtypes::cast_to_floating, Saves::output};
  template <class X>
  SASH_HOST_DEVICE auto operator()(const X& x) const {
    return element_t<X>(1) / (exp(-x) + element_t<X>(1));
  }
  static auto backward(const auto& g, const auto& y) { return g * (y * (1 - y)); }
};
struct Erf {
  static constexpr UnaryRow row{"erf", Dtypes::cast_to_floating, Saves::input};
  SASH_HOST_DEVICE auto operator()(const auto& x) const { return erf(x); }
  static auto backward(const auto& g, const auto& x) {
    return g * (exp(neg(square(x))) * (2 * std::numbers::inv_sqrtpi));
  }
};
struct Relu {
  static constexpr UnaryRow row{"relu", Dtypes::floating, Saves::output};
  template <class T>
  SASH_HOST_DEVICE T operator()(const T& x) const {
    return x <= T(0) ? T(0) : x;
  }
  static auto backward(const auto& g, const auto& y) { return relu_backward(g, y); }
};
struct Silu {
  static constexpr UnaryRow row{"silu", Dtypes::floating, Saves::input};
  template <class X>
  SASH_HOST_DEVICE auto operator()(const X& x) const {
    return x / (exp(-x) + element_t<X>(1));
  }
  static auto backward(const auto& g, const auto& x) {
    const auto s = sigmoid(x);
    return g * (s * (x * (1 - s) + 1));
  }
};
struct Floor {
  static constexpr UnaryRow row{"floor", Dtypes::floating};
  SASH_HOST_DEVICE auto operator()(const auto& x) const { return floor(x); }
  static auto backward(const auto& g) { return zeros_like(g); }
};

struct Ceil {
  static constexpr UnaryRow row{"ceil", Dtypes::floating};
  SASH_HOST_DEVICE auto operator()(const auto& x) const { return ceil(x); }
  static auto backward(const auto& g) { return zeros_like(g); }
};
struct Round {
  static constexpr UnaryRow row{"round", Dtypes::floating};
  SASH_HOST_DEVICE auto operator()(const auto& x) const { return rint(x); }
  static auto backward(const auto& g) { return zeros_like(g); }
};
struct Softplus {
  static constexpr UnaryRow row{"softplus", Dtypes::floating, Saves::input};
  template <class T>
  SASH_HOST_DEVICE T operator()(const T& x) const {
    return log1p(exp(-abs(x))) + (x <= T(0) ? T(0) : x);
  }
  static auto backward(const auto& g, const auto& x) { return g * sigmoid(x); }
};

struct LogicalNot {
  static constexpr UnaryRow row{"logical_not", Dtypes::boolean};
  SASH_HOST_DEVICE auto operator()(const auto& x) const { return !x; }
};
struct IsNan {
  static constexpr UnaryRow row{"isnan", Dtypes::floating};
  SASH_HOST_DEVICE bool operator()(const auto& x) const { return x != x; }
};
struct IsFinite {
  static constexpr UnaryRow row{"isfinite", Dtypes::floating};
  SASH_HOST_DEVICE bool operator()(const auto& x) const { return x - x == 0; }
};
struct IsInf {
  static constexpr UnaryRow row{"isinf", Dtypes::floating};
  SASH_HOST_DEVICE bool operator()(const auto& x) const { return x == x && x - x != 0; }
};

// ---- two tensors: backward(to, g, a, b) gives to.a() and to.b() what makes their gradients before
// those are summed to the operands' shapes. Only the operands that the row names are there.

struct Add {
  static constexpr BinaryRow row{"add", Dtypes::numbers};
  SASH_HOST_DEVICE auto operator()(const auto& a, const auto& b) const { return a + b; }
  static void backward(auto& to, const auto& g, const auto&, const auto&) {
    to.a([&] { return g; });
    to.b([&] { return g; });
  }
};
struct Sub {
  static constexpr BinaryRow row{"sub", Dtypes::numbers};
  SASH_HOST_DEVICE auto operator()(const auto& a, const auto& b) const { return a - b; }
  static void backward(auto& to, const auto& g, const auto&, const auto&) {
    to.a([&] { return g; });
    to.minus_b([&] { return g; });
  }
};
struct Mul {
  static constexpr BinaryRow row{"mul", Dtypes::numbers, {.b = true}, {.a = true}};
  SASH_HOST_DEVICE auto operator()(const auto& a, const auto& b) const { return a * b; }
  static void backward(auto& to, const auto& g, const auto& a, const auto& b) {
    to.a([&] { return g * b; });
    to.b([&] { return g * a; });
  }
};
struct Div {
  static constexpr BinaryRow row{"div", Dtypes::cast_to_floating, {.b = true}, kBoth};
  SASH_HOST_DEVICE auto operator()(const auto& a, const auto& b) const { return a / b; }
  static void backward(auto& to, const auto& g, const auto& a, const auto& b) {
    const auto quotient = g / b;
    to.a([&] { return quotient; });
    to.minus_b([&] { return quotient * (a / b); });
  }
};
/// a^b modulo 2^64; for b < 0 the whole part: 1 or -1 for a = 1 or -1, else 0.
SASH_HOST_DEVICE inline int64_t integer_power(int64_t a, int64_t b) {
  if (b < 0) return a == 1 || (a == -1 && b % 2 == 0) ? 1 : a == -1 ? -1 : 0;
  uint64_t power = 1, square = static_cast<uint64_t>(a);
  for (; b > 0; b /= 2, square *= square) power *= b % 2 == 1 ? square : 1;
  return static_cast<int64_t>(power);
}
struct Pow {
  static constexpr BinaryRow row{"pow", Dtypes::floating_or_int64, kBoth, kBoth};
  template <class T>
  SASH_HOST_DEVICE T operator()(const T& a, const T& b) const {
    if constexpr (std::is_integral_v<T>) {
      return integer_power(a, b);
    } else {
      return pow(a, b);
    }
  }
  static void backward(auto& to, const auto& g, const auto& a, const auto& b) {
    to.a([&] {
      const auto slope = b * pow(a, b - 1);
      return g * where(eq(b, 0), zeros({}, g.options()), slope);
    });
    to.b([&] {
      // Where 0^b is flat in b, log never sees 0: not even in the second derivative.
      const auto flat = logical_and(eq(a, 0), ge(b, 0));
      return g * (pow(a, b) * log(where(flat, ones({}, g.options()), a)));
    });
  }
};

/// The gradient goes to the operand that wins, half to each where they are equal, all to both where
/// one is NaN.
void split_tie_gradient(auto& to, const auto& g, const auto& a_wins, const auto& b_wins,
                        const auto& tied) {
  const auto part = where(tied, g * 0.5, g);
  const auto zero = zeros({}, g.options());
  to.a([&] { return where(b_wins, zero, part); });
  to.b([&] { return where(a_wins, zero, part); });
}
// NaN on either side wins.
struct Maximum {
  static constexpr BinaryRow row{"maximum", Dtypes::numbers, kBoth, kBoth};
  template <class T>
  SASH_HOST_DEVICE T operator()(const T& a, const T& b) const {
    return a > b || a != a ? a : b;
  }
  static void backward(auto& to, const auto& g, const auto& a, const auto& b) {
    split_tie_gradient(to, g, gt(a, b), lt(a, b), eq(a, b));
  }
};
struct Minimum {
  static constexpr BinaryRow row{"minimum", Dtypes::numbers, kBoth, kBoth};
  template <class T>
  SASH_HOST_DEVICE T operator()(const T& a, const T& b) const {
    return a < b || a != a ? a : b;
  }
  static void backward(auto& to, const auto& g, const auto& a, const auto& b) {
    split_tie_gradient(to, g, lt(a, b), gt(a, b), eq(a, b));
  }
};
struct Atan2 {
  static constexpr BinaryRow row{"atan2", Dtypes::cast_to_floating, kBoth, kBoth};
  SASH_HOST_DEVICE auto operator()(const auto& a, const auto& b) const { return atan2(a, b); }
  static void backward(auto& to, const auto& g, const auto& a, const auto& b) {
    const auto share = g / (square(a) + square(b));
    to.a([&] { return share * b; });
    to.minus_b([&] { return share * a; });
  }
};
// Of integers divided by 0 both are 0.
struct Remainder {
  static constexpr BinaryRow row{"remainder", Dtypes::numbers, {}, kBoth};
  template <class T>
  SASH_HOST_DEVICE T operator()(const T& a, const T& b) const {
    T rest;
    if constexpr (std::is_integral_v<T>) {
      rest = b == 0 || b == -1 ? T(0) : a % b;  // the least integer % -1 overflows
    } else {
      rest = fmod(a, b);
    }
    return rest != T(0) && (rest < T(0)) != (b < T(0)) ? rest + b : rest;
  }
  static void backward(auto& to, const auto& g, const auto& a, const auto& b) {
    to.a([&] { return g; });
    to.minus_b([&] { return g * floor_divide(a, b); });
  }
};
struct FloorDivide {
  static constexpr BinaryRow row{"floor_divide", Dtypes::numbers};
  template <class T>
  SASH_HOST_DEVICE T operator()(const T& a, const T& b) const {
    if constexpr (std::is_integral_v<T>) {
      if (b == 0) return 0;
      if (b == -1) return -a;
      return a / b - static_cast<T>(a % b != 0 && (a < 0) != (b < 0));
    } else {
      if (b == T(0)) return a / b;
      const T rest = fmod(a, b);
      T quotient = (a - rest) / b;
      if (rest != T(0) && (rest < T(0)) != (b < T(0))) quotient -= T(1);
      if (quotient == T(0)) return copysign(T(0), a / b);
      const T whole = floor(quotient);
      return quotient - whole > T(0.5) ? whole + T(1) : whole;
    }
  }
  static void backward(auto& to, const auto& g, const auto&, const auto&) {
    to.a([&] { return zeros_like(g); });
    to.b([&] { return zeros_like(g); });
  }
};
/// The gradient of relu from g and y = relu(x).
struct ReluBackward {
  static constexpr BinaryRow row{"relu_backward", Dtypes::floating};
  template <class T>
  SASH_HOST_DEVICE T operator()(const T& g, const T& y) const {
    return y <= T(0) ? T(0) : g;
  }
};

struct LogicalAnd {
  static constexpr BinaryRow row{"logical_and", Dtypes::boolean};
  SASH_HOST_DEVICE auto operator()(const auto& a, const auto& b) const { return a && b; }
};
struct LogicalOr {
  static constexpr BinaryRow row{"logical_or", Dtypes::boolean};
  SASH_HOST_DEVICE auto operator()(const auto& a, const auto& b) const { return a || b; }
};

struct Eq {
  static constexpr BinaryRow row{"eq", Dtypes::all};
  SASH_HOST_DEVICE bool operator()(const auto& a, const auto& b) const { return a == b; }
};
struct Ne {
  static constexpr BinaryRow row{"ne", Dtypes::all};
  SASH_HOST_DEVICE bool operator()(const auto& a, const auto& b) const { return a != b; }
};
struct Lt {
  static constexpr BinaryRow row{"lt", Dtypes::all};
  SASH_HOST_DEVICE bool operator()(const auto& a, const auto& b) const { return a < b; }
};
struct Le {
  static constexpr BinaryRow row{"le", Dtypes::all};
  SASH_HOST_DEVICE bool operator()(const auto& a, const auto& b) const { return a <= b; }
};
struct Gt {
  static constexpr BinaryRow row{"gt", Dtypes::all};
  SASH_HOST_DEVICE bool operator()(const auto& a, const auto& b) const { return a > b; }
};
struct Ge {
  static constexpr BinaryRow row{"ge", Dtypes::all};
  SASH_HOST_DEVICE bool operator()(const auto& a, const auto& b) const { return a >= b; }
};

// ---- of a tensor and a scalar only; `ops/elementwise/unary.cpp` has the derivatives

struct LeakyRelu {
  static constexpr BinaryRow row{"leaky_relu", Dtypes::floating};
  template <class T>
  SASH_HOST_DEVICE T operator()(const T& x, const T& slope) const {
    return x <= T(0) ? x * slope : x;
  }
};
/// The derivative of `LeakyRelu`.
struct LeakyReluSlope {
  static constexpr BinaryRow row{"leaky_relu_slope", Dtypes::floating};
  template <class T>
  SASH_HOST_DEVICE T operator()(const T& x, const T& slope) const {
    return x <= T(0) ? slope : T(1);
  }
};
struct Elu {
  static constexpr BinaryRow row{"elu", Dtypes::floating};
  template <class T>
  SASH_HOST_DEVICE T operator()(const T& x, const T& alpha) const {
    return x <= T(0) ? expm1(x) * alpha : x;
  }
};
/// The derivative of `Elu`.
struct EluSlope {
  static constexpr BinaryRow row{"elu_slope", Dtypes::floating};
  template <class T>
  SASH_HOST_DEVICE T operator()(const T& x, const T& alpha) const {
    return x <= T(0) ? exp(x) * alpha : T(1);
  }
};

// ---- formulas with scalars

/// A row of two tensors whose second operand is a scalar.
template <class Op, class T>
struct WithScalar {
  T value;
  SASH_HOST_DEVICE auto operator()(const auto& x) const { return Op{}(x, value); }
};
/// min(max(x, low), high); NaN stays NaN.
template <class T>
struct Clamp {
  T low, high;
  SASH_HOST_DEVICE T operator()(const T& x) const {
    const T above = x < low ? low : x;
    return above > high ? high : above;
  }
};

// ---- the lists

template <class... Ops>
struct List {
  static constexpr size_t size = sizeof...(Ops);
  template <class Op>
  static constexpr bool has = (std::is_same_v<Op, Ops> || ...);
  template <class Op>
  static constexpr size_t index_of() {
    size_t index = 0;
    static_cast<void>(((std::is_same_v<Op, Ops> || (++index, false)) || ...));
    return index;
  }
  /// f(Op{}) for each row.
  static void for_each(auto f) { (f(Ops{}), ...); }
};

using UnaryOps = List<Neg, Abs, Sign, Square, Exp, Log, Log2, Log1p, Expm1, Sqrt, Rsqrt, Reciprocal,
                      Sin, Cos, Tanh, Sigmoid, Erf, Relu, Silu, Softplus, Floor, Ceil, Round,
                      LogicalNot, IsNan, IsFinite, IsInf>;
using ArithmeticOps = List<Add, Sub, Mul, Div, Pow, Atan2, Remainder, FloorDivide, Maximum, Minimum,
                           ReluBackward, LogicalAnd, LogicalOr>;
using CompareOps = List<Eq, Ne, Lt, Le, Gt, Ge>;
/// With a scalar in place of the second tensor.
using ScalarOps =
    List<Add, Mul, Div, Pow, Remainder, FloorDivide, LeakyRelu, LeakyReluSlope, Elu, EluSlope>;

/// Whether the result is bool, whatever the operands.
template <class Op>
constexpr bool is_predicate() {
  if constexpr (Op::row.dtypes == Dtypes::boolean) {
    return true;
  } else if constexpr (std::is_invocable_v<Op, float>) {
    return std::is_same_v<std::invoke_result_t<Op, float>, bool>;
  } else {
    return std::is_same_v<std::invoke_result_t<Op, float, float>, bool>;
  }
}
/// The type of the result for operands of type T.
template <class Op, class T>
using result_t = std::conditional_t<is_predicate<Op>(), bool, T>;

}  // namespace sash::op
