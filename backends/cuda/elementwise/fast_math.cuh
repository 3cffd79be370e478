#pragma once

#include <cmath>
#include <numbers>

#include "compute.cuh"

/// Functions for which the card has instructions. In float32 their relative error is below 2^-22,
/// and results below 2^-126 are 0.
namespace sash::cuda {

template <class T>
inline constexpr T kLog2E = static_cast<T>(std::numbers::log2e);

inline __device__ float power_of_2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
inline __device__ double power_of_2(double x) { return std::exp2(x); }

inline __device__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
inline __device__ double reciprocal(double x) { return 1 / x; }

/// exp(a - b) for numbers stored as T. Halves use the fast instruction, whose error is far below
/// the rounding of a half.
template <class T>
__device__ compute_t<T> exp_of_difference(compute_t<T> a, compute_t<T> b) {
  if constexpr (kIsHalf<T>) {
    return power_of_2((a - b) * kLog2E<float>);
  } else {
    return std::exp(a - b);
  }
}

}  // namespace sash::cuda
