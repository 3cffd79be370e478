#pragma once

#include <cstdio>
#include <cstdlib>
#include <type_traits>
#include <utility>
#include <vector>

// Code of cards cannot refer to constants, so it takes operands by value.
#ifdef __CUDACC__
#define SASH_ANYWHERE __host__ __device__
#define SASH_OPERAND(T) T
#else
#define SASH_ANYWHERE
#define SASH_OPERAND(T) T&&
#endif

/// What mutated sources include. All mutants are compiled; SASH_MUTANT=<n> makes one active. At its
/// end, a process adds the numbers that it reached to the file SASH_MUTANTS_REACHED.
///
/// An infix mutant stands between the operands, and has the precedence of the operator around it:
/// a + b becomes a + Infix<7>{} + b.
namespace sash::mutants {

constexpr int kMost = 1024;

struct State {
  int active = std::getenv("SASH_MUTANT") ? std::atoi(std::getenv("SASH_MUTANT")) : 0;
  bool reached[kMost] = {};

  ~State() {
    const char* const path = std::getenv("SASH_MUTANTS_REACHED");
    std::FILE* const file = path ? std::fopen(path, "a") : nullptr;
    if (!file) return;
    for (int n = 0; n < kMost; ++n) {
      if (reached[n]) std::fprintf(file, "%d\n", n);
    }
    std::fclose(file);
  }
};

inline State state;

#ifdef __CUDACC__
/// A card's copy of the state; each source has one. `open_cards` sets them.
struct CardState {
  int active;
  bool reached[kMost];
};
static __device__ CardState card_state;

inline std::vector<void (*)()>& card_states() {
  static std::vector<void (*)()> all;
  return all;
}
static const bool card_state_listed = [] {
  card_states().push_back([] {
    cudaMemcpyToSymbol(card_state, &state.active, sizeof(int));
    std::atexit([] {
      CardState copy;
      if (cudaMemcpyFromSymbol(&copy, card_state, sizeof copy) != cudaSuccess) return;
      for (int n = 0; n < kMost; ++n) state.reached[n] |= copy.reached[n];
    });
  });
  return true;
}();
inline void open_cards() {
  for (const auto open : card_states()) open();
}
#endif

SASH_ANYWHERE constexpr bool on(int n) {
  if (__builtin_is_constant_evaluated()) return false;
#ifdef __CUDA_ARCH__
  if (card_state.active == 0 && !card_state.reached[n]) card_state.reached[n] = true;
  return card_state.active == n;
#else
  state.reached[n] = true;
  return state.active == n;
#endif
}

template <int n>
struct Infix {};

template <int n, class L>
struct Left {
  L value;  // a reference to an lvalue
};

#define SASH_INFIX(op, mutated)                                                           \
  template <int n, class L>                                                               \
  SASH_ANYWHERE constexpr Left<n, L> operator op(SASH_OPERAND(L) left, Infix<n>) {        \
    return {std::forward<L>(left)};                                                       \
  }                                                                                       \
  template <int n, class L, class R>                                                      \
  SASH_ANYWHERE constexpr auto operator op(Left<n, L>&& l, SASH_OPERAND(R) right) {       \
    using T = std::decay_t<decltype(std::forward<L>(l.value) op std::forward<R>(right))>; \
    if (on(n)) return static_cast<T>(mutated);                                            \
    return static_cast<T>(std::forward<L>(l.value) op std::forward<R>(right));            \
  }

/// a * b without b, or without a if only b has the type of the product.
template <class T, class L, class R>
SASH_ANYWHERE constexpr T factor(const L& left, const R& right) {
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

/// Infix<n>{} - a is -a, or a.
template <int n, class R>
SASH_ANYWHERE constexpr auto operator-(Infix<n>, SASH_OPERAND(R) right) {
  using T = std::decay_t<decltype(-right)>;
  if (on(n)) return static_cast<T>(right);
  return static_cast<T>(-std::forward<R>(right));
}

/// a += Infix<n>{} += b; of a product, a stays.
template <int n, class R>
struct Right {
  R value;
};

#define SASH_ASSIGNMENT(op, mutated)                                                 \
  template <int n, class R>                                                          \
  SASH_ANYWHERE constexpr Right<n, R> operator op(Infix<n>, SASH_OPERAND(R) right) { \
    return {std::forward<R>(right)};                                                 \
  }                                                                                  \
  template <int n, class L, class R>                                                 \
  SASH_ANYWHERE constexpr decltype(auto) operator op(L&& left, Right<n, R>&& r) {    \
    if (on(n)) return mutated;                                                       \
    return left op std::forward<R>(r.value);                                         \
  }

SASH_ASSIGNMENT(+=, left -= r.value)
SASH_ASSIGNMENT(-=, left += r.value)
SASH_ASSIGNMENT(*=, (left))
#undef SASH_ASSIGNMENT

/// condition || Infix<n>{} is the condition, or its contrary.
template <int n, class L>
SASH_ANYWHERE constexpr bool operator||(SASH_OPERAND(L) condition, Infix<n>) {
  return on(n) != static_cast<bool>(condition);
}

/// std::min and std::max, one for the other.
template <int n>
struct Extremum {
  template <class T>
  SASH_ANYWHERE static constexpr const T& min(const T& a, const T& b) {
    return on(n) == (b < a) ? a : b;
  }
  template <class T>
  SASH_ANYWHERE static constexpr const T& max(const T& a, const T& b) {
    return on(n) == (a < b) ? a : b;
  }
};

/// The first of two arguments of one type, or the second.
template <int n, class T>
SASH_ANYWHERE constexpr T& swap(T& a, T& b) {
  return on(n) ? b : a;
}

}  // namespace sash::mutants
