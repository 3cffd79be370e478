#pragma once

#include <cmath>
#include <numbers>
#include <type_traits>

#include "../norm/rows.h"

/// GELU's distribution functions, inlined so that vectors stay in registers. For large |x| both
/// forms reach their limits, 0 and 1, exactly.
namespace sash::cpu {

inline constexpr double kTwoK = 2 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi;
inline constexpr double kDensity = std::numbers::inv_sqrtpi / std::numbers::sqrt2;
inline constexpr double kCubic = 0.044715;

/// In float32, 1/2 + x p(x^2) / q(x^2) with an error of 2e-7. At the end of its range the quotient
/// is slightly above 1/2 by design, and is cut to 1/2. So the result is exact there, however the
/// quotient is rounded.
template <class T>
[[gnu::always_inline]] inline Lanes<T> normal_cdf(const Lanes<T>& x) {
  if constexpr (std::is_same_v<T, float>) {
    const Lanes<T> z = max(min(x, 5.6F), -5.6F), square = z * z;
    Lanes<T> p = 1.0803053e-10F, q = 6.62541e-05F;
    for (const float next : {-2.1997742e-08F, 3.3618128e-06F, 1.8248569e-04F, 4.587669e-03F,
                             3.711423e-02F, 3.989421e-01F}) {
      p = multiply_add(p, square, Lanes<T>(next));
    }
    for (const float next : {1.9015791e-03F, 2.9786997e-02F, 2.596957e-01F, 1.0F}) {
      q = multiply_add(q, square, Lanes<T>(next));
    }
    return max(min(z * p / q, 0.5F), -0.5F) + 0.5F;
  } else {
    alignas(64) T all[kLanes];
    x.store(all);
    for (T& element : all)
      element = T(0.5) * (T(1) + std::erf(element * T(std::numbers::sqrt2 / 2)));
    return Lanes<T>(all);
  }
}

/// x times the derivative of `normal_cdf`.
template <class T>
[[gnu::always_inline]] inline Lanes<T> normal_slope(const Lanes<T>& x) {
  return x * (exp_of_negative(x * x * T(-0.5)) * T(kDensity));
}

// (1 + tanh u) / 2 = 1 / (1 + e^(-2u)): one exponential, and no cancellation for u < 0.
template <class T>
[[gnu::always_inline]] inline Lanes<T> tanh_cdf(const Lanes<T>& x) {
  return T(1) / (exp(x * (x * x * T(kCubic) + T(1)) * -T(kTwoK)) + T(1));
}

/// x times the derivative of `tanh_cdf`, p: P' = P (1 - P) 2 u'.
template <class T>
[[gnu::always_inline]] inline Lanes<T> tanh_slope(const Lanes<T>& x, const Lanes<T>& p) {
  return x * p * (T(1) - p) * T(kTwoK) * (x * x * (3 * T(kCubic)) + T(1));
}

}  // namespace sash::cpu
