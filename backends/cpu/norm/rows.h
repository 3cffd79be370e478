#pragma once

#include <Eigen/Core>
#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "../../../core/parallel.h"
#include "../shape/convert.h"

/// Helpers for kernels over rows. A row is processed in vectors of 16 lanes on every instruction
/// set, and lanes are added pairwise in a fixed order. So a row's sum depends neither on its
/// address nor on the register width nor on the number of threads.
namespace sash::cpu {

inline constexpr int kLanes = 16;

/// Sixteen elements in registers. Arithmetic is lane by lane; a scalar is broadcast to all lanes.
/// (Not a fixed-size `Eigen::Array`, because compilers keep that in memory.)
template <class T>
class Lanes {
 public:
  using Scalar = T;

  Lanes() = default;
  Lanes(T value) {
    for (Packet& part : parts_) part = Eigen::internal::pset1<Packet>(value);
  }
  explicit Lanes(const T* from) {
    for (int k = 0; k < kParts; ++k) parts_[k] = Eigen::internal::ploadu<Packet>(from + k * kWidth);
  }
  void store(T* to) const {
    for (int k = 0; k < kParts; ++k) Eigen::internal::pstoreu(to + k * kWidth, parts_[k]);
  }
  /// Halves are widened and rounded in the registers.
  template <class Half>
  requires kIsHalf<Half>
  explicit Lanes(const Half* from) {
    for (int k = 0; k < kParts; ++k) parts_[k] = widened<Packet>(from + k * kWidth);
  }
  template <class Half>
  requires kIsHalf<Half>
  void store(Half* to) const {
    for (int k = 0; k < kParts; ++k) narrow_to(to + k * kWidth, parts_[k]);
  }

  friend Lanes operator+(const Lanes& a, const Lanes& b) {
    return zip(a, b, [](auto x, auto y) { return Eigen::internal::padd(x, y); });
  }
  friend Lanes operator-(const Lanes& a, const Lanes& b) {
    return zip(a, b, [](auto x, auto y) { return Eigen::internal::psub(x, y); });
  }
  friend Lanes operator*(const Lanes& a, const Lanes& b) {
    return zip(a, b, [](auto x, auto y) { return Eigen::internal::pmul(x, y); });
  }
  friend Lanes operator/(const Lanes& a, const Lanes& b) {
    return zip(a, b, [](auto x, auto y) { return Eigen::internal::pdiv(x, y); });
  }
  friend Lanes operator-(const Lanes& a) {
    return zip(a, a, [](auto x, auto) { return Eigen::internal::pnegate(x); });
  }
  friend Lanes abs(const Lanes& a) {
    return zip(a, a, [](auto x, auto) { return Eigen::internal::pabs(x); });
  }
  Lanes& operator+=(const Lanes& b) { return *this = *this + b; }
  Lanes& operator*=(const Lanes& b) { return *this = *this * b; }

  /// The sum, or the maximum, of all lanes, by pairwise halving.
  friend T sum_of(Lanes x) {
    for (int half = kParts / 2; half > 0; half /= 2) {
      for (int k = 0; k < half; ++k) {
        x.parts_[k] = Eigen::internal::padd(x.parts_[k], x.parts_[k + half]);
      }
    }
    return sum_in(x.parts_[0]);
  }
  friend T max_of(Lanes x) {
    for (int half = kParts / 2; half > 0; half /= 2) {
      for (int k = 0; k < half; ++k) {
        x.parts_[k] = Eigen::internal::pmax(x.parts_[k], x.parts_[k + half]);
      }
    }
    return Eigen::internal::predux_max(x.parts_[0]);
  }

  /// a b + c.
  friend Lanes multiply_add(const Lanes& a, const Lanes& b, const Lanes& c) {
    Lanes y;
    for (int k = 0; k < kParts; ++k) {
      y.parts_[k] = Eigen::internal::pmadd(a.parts_[k], b.parts_[k], c.parts_[k]);
    }
    return y;
  }
  /// The maximum or minimum of each lane. If one element is NaN, the result may be either element.
  friend Lanes min(const Lanes& a, const Lanes& b) {
    return zip(a, b, [](auto x, auto y) { return Eigen::internal::pmin(x, y); });
  }
  friend Lanes max(const Lanes& a, const Lanes& b) {
    return zip(a, b, [](auto x, auto y) { return Eigen::internal::pmax(x, y); });
  }
  /// The maximum or minimum of each lane; NaN if either element is NaN.
  friend Lanes max_or_nan(const Lanes& a, const Lanes& b) {
    return zip(a, b, [](auto x, auto y) { return Eigen::internal::pmax<kNan>(x, y); });
  }
  friend Lanes min_or_nan(const Lanes& a, const Lanes& b) {
    return zip(a, b, [](auto x, auto y) { return Eigen::internal::pmin<kNan>(x, y); });
  }
  /// 0 where b > limit, else a; a where b is NaN.
  friend Lanes zero_above(const Lanes& a, const Lanes& b, T limit) {
    return zip(a, b, [limit](auto x, auto y) {
      return Eigen::internal::pandnot(
          x, Eigen::internal::pcmp_lt(Eigen::internal::pset1<Packet>(limit), y));
    });
  }
  /// e^x; 0 where the result would be subnormal, infinity from x = 88.4 on (float32).
  friend Lanes exp(const Lanes& a) {
    return zip(a, a, [](auto x, auto) {
      constexpr T lowest = sizeof(T) == 4 ? T(-87.3) : T(-708.3);
      const auto small = Eigen::internal::pcmp_lt(x, Eigen::internal::pset1<Packet>(lowest));
      return Eigen::internal::pandnot(exp_normal<false>(x), small);
    });
  }
  /// e^x with an error of at most one unit in the last place; finite up to x = 88.72.
  friend Lanes exact_exp(const Lanes& a) {
    return zip(a, a, [](auto x, auto) {
      constexpr T lowest = sizeof(T) == 4 ? T(-87.33654) : T(-708.3964);
      const auto small = Eigen::internal::pcmp_lt(x, Eigen::internal::pset1<Packet>(lowest));
      return Eigen::internal::pandnot(exp_normal<true>(x), small);
    });
  }
  /// e^x for x <= 0 or NaN, faster than `exp`.
  friend Lanes exp_of_negative(const Lanes& a) {
    return zip(a, a, [](auto x, auto) { return exp_negative(x); });
  }

 private:
  using Packet = typename Eigen::internal::packet_traits<T>::type;
  static constexpr int kWidth = Eigen::internal::unpacket_traits<Packet>::size;
  static constexpr int kParts = kLanes / kWidth;
  static constexpr int kNan = Eigen::PropagateNaN;

  // The halves of a wide register are added; Eigen's sum of one may take another order.
  template <class Vector>
  static T sum_in(const Vector& x) {
    if constexpr (kWidth == 1) {
      return x;
    } else {
      constexpr int size = Eigen::internal::unpacket_traits<Vector>::size;
      if constexpr (size > 4) {
        return sum_in(Eigen::internal::predux_half_dowto4(x));
      } else {
        T lane[size];
        Eigen::internal::pstoreu(lane, x);
        for (int half = size / 2; half > 0; half /= 2) {
          for (int j = 0; j < half; ++j) lane[j] += lane[j + half];
        }
        return lane[0];
      }
    }
  }

  // e^x = 2^n e^r with n = round(x / ln 2) and |r| <= ln 2 / 2. The polynomial in r is that of
  // Cephes' expf. The lowest bit of `ones` has the value 1, so adding x / ln 2 rounds it and leaves
  // n + 127 in the low bits. Shifted left by 23, these are the float 2^n. float64 uses Eigen's exp,
  // which takes 1.5 times as long for float32. `exact` adds the last term of Cephes' polynomial.
  template <bool exact, class Vector>
  static Vector exp_normal(Vector x) {
    using namespace Eigen::internal;
    if constexpr (std::is_same_v<T, float> && kWidth > 1) {
      using Bits = typename unpacket_traits<Vector>::integer_packet;
      const auto number = [](float value) { return pset1<Vector>(value); };
      constexpr float ones = 0x1.8p23F + 127;
      x = pmin(x, number(89));
      Vector shifted = pmadd(x, number(0x1.715476p0F), number(ones));
      const Vector n = psub(shifted, number(ones));
      Vector r = pmadd(n, number(-0.693359375F), x);  // ln 2 in two parts
      r = pmadd(n, number(2.12194440e-4F), r);
      Vector p = number(1.3981999507e-3F);
      if constexpr (exact) p = pmadd(r, number(1.9875691500e-4F), p);
      for (const float next :
           {8.3334519073e-3F, 4.1665795894e-2F, 1.6666665459e-1F, 5.0000001201e-1F, 1.F, 1.F}) {
        p = pmadd(p, r, number(next));
      }
      if constexpr (exact) {  // 2^128 is 2 times 2^127, since no float is that large
        shifted = pmin(shifted, number(ones + 127));
        p = pmadd(p, psub(n, psub(shifted, number(ones))), p);
      }
      return pmul(p, preinterpret<Vector>(plogical_shift_left<23>(preinterpret<Bits>(shifted))));
    } else {
      return pexp(x);
    }
  }

  // As above, with r accurate enough from one product, and a minimax polynomial of degree 6. From
  // -127 ln 2 on down the exponent's bits are 0.
  template <class Vector>
  static Vector exp_negative(Vector x) {
    using namespace Eigen::internal;
    if constexpr (std::is_same_v<T, float> && kWidth > 1) {
      using Bits = typename unpacket_traits<Vector>::integer_packet;
      const auto number = [](float value) { return pset1<Vector>(value); };
      constexpr float ones = 0x1.8p23F + 127;
      x = pmax(x, number(-88.0297F));
      const Vector shifted = pmadd(x, number(0x1.715476p0F), number(ones));
      const Vector r = pmadd(psub(shifted, number(ones)), number(-0.693147181F), x);
      Vector p = pmadd(r, number(1.38144672e-3F), number(8.36878084e-3F));
      for (const float next : {4.16683927e-2F, 1.66665196e-1F, 4.9999994e-1F, 1.F, 1.F}) {
        p = pmadd(p, r, number(next));
      }
      return pmul(p, preinterpret<Vector>(plogical_shift_left<23>(preinterpret<Bits>(shifted))));
    } else {
      constexpr T lowest = sizeof(T) == 4 ? T(-87.3) : T(-708.3);
      const auto small = pcmp_lt(x, pset1<Vector>(lowest));
      return pandnot(pexp(x), small);
    }
  }

  template <class F>
  static Lanes zip(const Lanes& a, const Lanes& b, F f) {
    Lanes y;
    for (int k = 0; k < kParts; ++k) y.parts_[k] = f(a.parts_[k], b.parts_[k]);
    return y;
  }

  Packet parts_[kParts];
};

/// The number of lanes in use: `AllLanes`, or an `int` for the incomplete last vector of a row.
using AllLanes = std::integral_constant<int, kLanes>;

/// Loads `lanes` elements from `p`; the other lanes are `rest`.
template <class T, class N>
Lanes<compute_t<T>> load(const T* p, N lanes, compute_t<T> rest = 0) {
  if constexpr (std::is_same_v<N, AllLanes>) {
    return Lanes<compute_t<T>>(p);
  } else {
    alignas(64) compute_t<T> padded[kLanes];
    for (auto& element : padded) element = rest;
    for (int i = 0; i < lanes; ++i) padded[i] = static_cast<compute_t<T>>(p[i]);
    return Lanes<compute_t<T>>(padded);
  }
}

/// Stores the first `lanes` lanes to `p`.
template <class T, class N>
void store(T* p, N lanes, const Lanes<compute_t<T>>& x) {
  if constexpr (std::is_same_v<N, AllLanes>) {
    x.store(p);
  } else {
    alignas(64) T all[kLanes];
    x.store(all);
    std::copy_n(all, lanes, p);
  }
}

/// Calls `f(i, lanes)` for the vectors that cover [0, n).
template <class F>
void for_lanes(int64_t n, F&& f) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) f(i, AllLanes{});
  if (i < n) f(i, static_cast<int>(n - i));
}

/// The largest element, or 0 if all are -inf, so that subtracting it gives no NaN. May ignore a NaN
/// among the elements: the caller's results from these elements are NaN anyway.
template <class S>
compute_t<S> finite_max(const S* x, int64_t n) {
  using T = compute_t<S>;
  constexpr T lowest = -std::numeric_limits<T>::infinity();
  Lanes<T> m = lowest;
  for_lanes(n, [&](int64_t i, auto lanes) { m = max(m, load(x + i, lanes, lowest)); });
  const T highest = max_of(m);
  return highest == lowest ? T(0) : highest;
}

/// How many rows of `columns` elements a task takes.
inline int64_t rows_of_piece(int64_t columns) {
  return std::max<int64_t>(1, 16384 / std::max<int64_t>(1, columns));
}

/// Calls `f(row)` for each of `rows` rows of `columns` elements.
template <class F>
void for_each_row_of(int64_t rows, int64_t columns, F&& f) {
  parallel_for_each(rows, rows_of_piece(columns), [&](int64_t row) { f(row); });
}

}  // namespace sash::cpu
