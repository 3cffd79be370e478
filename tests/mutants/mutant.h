#pragma once

#include <cstdio>
#include <cstdlib>
#include <type_traits>
#include <utility>

/// What mutated sources include. All mutants are compiled; SASH_MUTANT=<n> makes one active. At its
/// end, a process adds the numbers that it reached to the file SASH_MUTANTS_REACHED.
///
/// An infix mutant stands between the operands, and has the precedence of the operator around it:
/// a + b becomes a + infix<7> + b.
namespace sash::mutants {

struct State {
  int active = std::getenv("SASH_MUTANT") ? std::atoi(std::getenv("SASH_MUTANT")) : 0;
  bool reached[1024] = {};

  ~State() {
    const char* const path = std::getenv("SASH_MUTANTS_REACHED");
    std::FILE* const file = path ? std::fopen(path, "a") : nullptr;
    if (!file) return;
    for (int n = 0; n < 1024; ++n) {
      if (reached[n]) std::fprintf(file, "%d\n", n);
    }
    std::fclose(file);
  }
};

inline State state;

constexpr bool on(int n) {
  if (std::is_constant_evaluated()) return false;
  state.reached[n] = true;
  return state.active == n;
}

template <int n>
struct Infix {};
template <int n>
inline constexpr Infix<n> infix;

template <int n, class L>
struct Left {
  L value;  // a reference to an lvalue
};

#define SASH_INFIX(op, mutated)                                                           \
  template <int n, class L>                                                               \
  constexpr Left<n, L> operator op(L&& left, Infix<n>) {                                  \
    return {std::forward<L>(left)};                                                       \
  }                                                                                       \
  template <int n, class L, class R>                                                      \
  constexpr auto operator op(Left<n, L>&& l, R&& right) {                                 \
    using T = std::decay_t<decltype(std::forward<L>(l.value) op std::forward<R>(right))>; \
    if (on(n)) return static_cast<T>(mutated);                                            \
    return static_cast<T>(std::forward<L>(l.value) op std::forward<R>(right));            \
  }

/// a * b without b, or without a if only b has the type of the product.
template <class T, class L, class R>
constexpr T factor(const L& left, const R& right) {
  if constexpr (std::is_convertible_v<const L&, T>) {
    return static_cast<T>(left);
  } else {
    return static_cast<T>(right);
  }
}

SASH_INFIX(+, l.value - right)
SASH_INFIX(-, l.value + right)
SASH_INFIX(*, (factor<T>(l.value, right)))
SASH_INFIX(/, l.value* right)
SASH_INFIX(<, l.value <= right)
SASH_INFIX(<=, l.value < right)
SASH_INFIX(>, l.value >= right)
SASH_INFIX(>=, l.value > right)
SASH_INFIX(==, l.value != right)
SASH_INFIX(!=, l.value == right)
#undef SASH_INFIX

/// infix<n> - a is -a, or a.
template <int n, class R>
constexpr auto operator-(Infix<n>, R&& right) {
  using T = std::decay_t<decltype(-right)>;
  if (on(n)) return static_cast<T>(right);
  return static_cast<T>(-std::forward<R>(right));
}

/// a += infix<n> += b; of a product, a stays.
template <int n, class R>
struct Right {
  R value;
};

#define SASH_ASSIGNMENT(op, mutated)                                \
  template <int n, class R>                                         \
  constexpr Right<n, R> operator op(Infix<n>, R&& right) {          \
    return {std::forward<R>(right)};                                \
  }                                                                 \
  template <int n, class L, class R>                                \
  constexpr decltype(auto) operator op(L&& left, Right<n, R>&& r) { \
    if (on(n)) return mutated;                                      \
    return left op std::forward<R>(r.value);                        \
  }

SASH_ASSIGNMENT(+=, left -= r.value)
SASH_ASSIGNMENT(-=, left += r.value)
SASH_ASSIGNMENT(*=, (left))
#undef SASH_ASSIGNMENT

/// condition || infix<n> is the condition, or its contrary.
template <int n, class L>
constexpr bool operator||(const L& condition, Infix<n>) {
  return on(n) != static_cast<bool>(condition);
}

/// std::min and std::max, one for the other.
template <int n>
struct Extremum {
  template <class T>
  static constexpr const T& min(const T& a, const T& b) {
    return on(n) == (b < a) ? a : b;
  }
  template <class T>
  static constexpr const T& max(const T& a, const T& b) {
    return on(n) == (a < b) ? a : b;
  }
};

/// The first of two arguments of one type, or the second.
template <int n, class T>
constexpr T& swap(T& a, T& b) {
  return on(n) ? b : a;
}

}  // namespace sash::mutants
