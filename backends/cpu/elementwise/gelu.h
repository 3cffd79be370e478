#pragma once

#include <Eigen/Core>
#include <numbers>
#include <unsupported/Eigen/SpecialFunctions>

/// GELU's distribution functions on Eigen arrays. For large |x| both forms reach their limits, 0
/// and 1, exactly.
namespace sash::cpu {

template <class T, class X>
auto normal_cdf(const X& x) {
  return T(0.5) * (T(1) + (x * static_cast<T>(1 / std::numbers::sqrt2)).erf());
}

template <class T>
inline constexpr T kTwoK = static_cast<T>(2 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi);
template <class T>
inline constexpr T kDensity = static_cast<T>(std::numbers::inv_sqrtpi / std::numbers::sqrt2);
template <class T>
inline constexpr T kCubic = static_cast<T>(0.044715);

// (1 + tanh u) / 2 = 1 / (1 + e^(-2u)): one exponential, and no cancellation for u < 0.
template <class T, class X>
auto tanh_cdf(const X& x) {
  return (T(1) + (x * (T(1) + kCubic<T> * x.square()) * -kTwoK<T>).exp()).inverse();
}

}  // namespace sash::cpu
