#pragma once

#include <cmath>
#include <numbers>

#include "fast_math.cuh"

namespace sash::cuda {

template <class T>
inline constexpr T kInvSqrt2 = static_cast<T>(1 / std::numbers::sqrt2);
template <class T>
inline constexpr T kTwoK = static_cast<T>(2 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi);
template <class T>
inline constexpr T kDensity = static_cast<T>(std::numbers::inv_sqrtpi / std::numbers::sqrt2);
template <class T>
inline constexpr T kCubic = static_cast<T>(0.044715);

/// The normal distribution function and its density.
struct ExactGelu {
  template <class T>
  static __device__ T cdf(T x) {
    return T(0.5) * (T(1) + std::erf(x * kInvSqrt2<T>));
  }
  template <class T>
  static __device__ T density(T x, T) {
    return kDensity<T> * power_of_2(T(-0.5) * kLog2E<T> * x * x);
  }
};

/// (1 + tanh u) / 2 = 1 / (1 + e^(-2u)): one exponential, and no cancellation for u < 0.
struct GeluByTanh {
  template <class T>
  static __device__ T cdf(T x) {
    constexpr T scale = -kTwoK<T> * kLog2E<T>;
    return reciprocal(T(1) + power_of_2(x * (scale + scale * kCubic<T> * x * x)));
  }
  /// P' = P (1 - P) 2 u'.
  template <class T>
  static __device__ T density(T x, T p) {
    return p * ((T(1) - p) * (kTwoK<T> + 3 * kCubic<T> * kTwoK<T> * x * x));
  }
};

template <class P>
struct Gelu {
  template <class T>
  __device__ T operator()(T x) const {
    return x * P::cdf(x);
  }
};

template <class P>
struct GeluGradient {
  template <class T>
  __device__ T operator()(T x, T g) const {
    const T p = P::cdf(x);
    return g * (p + x * P::density(x, p));
  }
};

}  // namespace sash::cuda
