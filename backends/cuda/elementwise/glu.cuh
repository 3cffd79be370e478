#pragma once

#include "../../../ops/kernels/glu.h"

#include "gelu.cuh"

/// The gates of gated linear units.
namespace sash::cuda {

using kernels::Gate;

/// The gate c times P(c): the factor P, and its derivative times c.
struct SiluGate {
  static constexpr bool kClamps = false;
  template <class A>
  static __device__ A cdf(A c) {
    return reciprocal(A(1) + power_of_2(-kLog2E<A> * c));
  }
  template <class A>
  static __device__ A slope(A c, A p) {
    return c * p * (A(1) - p);
  }
};

template <class P>
struct GeluGate {
  static constexpr bool kClamps = false;
  template <class A>
  static __device__ A cdf(A c) {
    return P::cdf(c);
  }
  template <class A>
  static __device__ A slope(A c, A p) {
    return c * P::density(c, p);
  }
};

struct ClampedGate {
  static constexpr bool kClamps = true;
  template <class A>
  static __device__ A cdf(A c) {
    return reciprocal(A(1) + power_of_2(A(-kernels::kGateSlope) * kLog2E<A> * c));
  }
  template <class A>
  static __device__ A slope(A c, A p) {
    return c * A(kernels::kGateSlope) * p * (A(1) - p);
  }
};

/// The gate and the value after clamping. A NaN stays a NaN.
template <class G, class A>
__device__ A gate_of(A a) {
  if constexpr (G::kClamps) return a > A(kernels::kGateLimit) ? A(kernels::kGateLimit) : a;
  return a;
}
template <class G, class A>
__device__ A factor_of(A b) {
  constexpr A limit = A(kernels::kGateLimit);
  if constexpr (G::kClamps) return (b > limit ? limit : b < -limit ? -limit : b) + A(1);
  return b;
}

template <class G, class A>
__device__ A forward_of(A a, A b) {
  const A c = gate_of<G>(a);
  return c * G::cdf(c) * factor_of<G>(b);
}

/// Replaces gate and value by their gradients.
template <class G, class A>
__device__ void backward_of(A g, A& a, A& b) {
  constexpr A limit = A(kernels::kGateLimit);
  const A c = gate_of<G>(a), p = G::cdf(c);
  const bool gate_passes = !G::kClamps || !(a >= limit);
  const bool value_passes = !G::kClamps || !(b >= limit || b <= -limit);
  a = gate_passes ? g * factor_of<G>(b) * (p + G::slope(c, p)) : A(0);
  b = value_passes ? g * c * p : A(0);
}

template <class A>
__device__ A gated(Gate gate, A a, A b) {
  switch (gate) {
    case Gate::silu:
      return forward_of<SiluGate>(a, b);
    case Gate::gelu:
      return forward_of<GeluGate<ExactGelu>>(a, b);
    case Gate::gelu_tanh:
      return forward_of<GeluGate<GeluByTanh>>(a, b);
    case Gate::clamped_silu:
      return forward_of<ClampedGate>(a, b);
  }
  return b;
}

/// Calls f(the type of `gate`).
template <class F>
void with_gate(Gate gate, F&& f) {
  switch (gate) {
    case Gate::silu:
      return f(SiluGate{});
    case Gate::gelu:
      return f(GeluGate<ExactGelu>{});
    case Gate::gelu_tanh:
      return f(GeluGate<GeluByTanh>{});
    case Gate::clamped_silu:
      return f(ClampedGate{});
  }
}

}  // namespace sash::cuda
