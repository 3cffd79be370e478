#pragma once

#include <Eigen/Core>
#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "../../core/parallel.h"

/// What the kernels over rows share: a row is walked in vectors of 16 lanes, whatever the
/// instruction set, and lanes are added pairwise in one fixed order. A row's sum therefore depends
/// neither on its address nor on the width of a register, and rows are cut for the threads in
/// fixed pieces.
namespace sash::cpu {

inline constexpr int kLanes = 16;

template <class T>
using Lanes = Eigen::Array<T, kLanes, 1>;

/// The number of lanes in use: all of them, or an `int` in the last vector of a row.
using AllLanes = std::integral_constant<int, kLanes>;

/// `lanes` elements from `p` on; the lanes beyond hold `rest`.
template <class T, class N>
Lanes<T> load(const T* p, N lanes, T rest = 0) {
  if constexpr (std::is_same_v<N, AllLanes>) {
    return Eigen::Map<const Lanes<T>>(p);
  } else {
    Lanes<T> x = Lanes<T>::Constant(rest);
    std::copy_n(p, lanes, x.data());
    return x;
  }
}

/// Writes the first `lanes` lanes to `p`.
template <class T, class N>
void store(T* p, N lanes, const Lanes<T>& x) {
  if constexpr (std::is_same_v<N, AllLanes>) {
    Eigen::Map<Lanes<T>>{p} = x;
  } else {
    std::copy_n(x.data(), lanes, p);
  }
}

/// Calls `f(i, lanes)` for the vectors that cover [0, n).
template <class F>
void for_lanes(int64_t n, F&& f) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) f(i, AllLanes{});
  if (i < n) f(i, static_cast<int>(n - i));
}

template <class T>
T sum_of(const Lanes<T>& x) {
  const Eigen::Array<T, 8, 1> a = x.template head<8>() + x.template tail<8>();
  const Eigen::Array<T, 4, 1> b = a.template head<4>() + a.template tail<4>();
  return (b[0] + b[2]) + (b[1] + b[3]);
}

/// e^x; exactly 0 for arguments so small that the result is no normal number.
template <class T>
Lanes<T> exp_of(const Lanes<T>& x) {
  const Lanes<T> e = x.exp();
  if constexpr (sizeof(T) == 8) return (x < T(-708)).select(T(0), e);
  return e;
}

/// The largest element, or 0 for a row of nothing but -inf, so that it can be subtracted. A NaN
/// among the elements may be overlooked: it comes back in what is computed from them.
template <class T>
T finite_max(const T* x, int64_t n) {
  constexpr T lowest = -std::numeric_limits<T>::infinity();
  Lanes<T> m = Lanes<T>::Constant(lowest);
  for_lanes(n, [&](int64_t i, auto lanes) { m = m.max(load(x + i, lanes, lowest)); });
  const T max = m.maxCoeff();
  return max == lowest ? T(0) : max;
}

/// Calls `f(row)` for each of `rows` rows of `columns` elements.
template <class F>
void for_each_row_of(int64_t rows, int64_t columns, F&& f) {
  constexpr int64_t piece = 16384;
  const int64_t grain = std::max<int64_t>(1, piece / std::max<int64_t>(1, columns));
  parallel_for(rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) f(row);
  });
}

}  // namespace sash::cpu
