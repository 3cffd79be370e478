#pragma once

#include "../random/philox.cuh"

/// Dropout within kernels: the factor of each element.
namespace sash::cuda {

/// 0 with probability p, else 1 / (1 - p), in the compute type A.
template <class A>
struct DropoutFactors {
  uint32_t threshold = 0;
  A scale = 1;
  PhiloxState state;

  DropoutFactors(double p, const PhiloxState& start)
      : threshold(dropout_threshold(p)),
        scale(p == 1 ? A(0) : static_cast<A>(1 / (1 - p))),
        state(start) {}

  __device__ bool drops() const { return threshold > 0; }

  /// The factors of the four elements of a Philox block.
  __device__ Vector<A, 4> operator()(const PhiloxBlock& block) const {
    return four_of<A>(block, [&](uint32_t bits) { return bits >= threshold ? scale : A(0); });
  }

  /// The factors of elements first ... first + V - 1. V divides `first`.
  template <int V>
  __device__ Vector<A, V> at(int64_t first) const {
    Vector<A, V> y;
    if constexpr (V < 4) {
#pragma unroll
      for (int i = 0; i < V; ++i) y.element[i] = one(first + i);
    } else {
      const uint64_t counter = base();
#pragma unroll
      for (int begin = 0; begin < V; begin += 4) {
        const auto place = static_cast<uint64_t>(first + begin) / 4;
        const Vector<A, 4> four = (*this)(philox(state.seed, counter + place));
#pragma unroll
        for (int i = 0; i < 4; ++i) y.element[begin + i] = four.element[i];
      }
    }
    return y;
  }

 private:
  __device__ uint64_t base() const { return (state.base ? *state.base : 0) + state.offset; }

  // Not inlined: for rows that allow no vectors, where a kernel has many copies of it.
  __device__ __noinline__ A one(int64_t at) const {
    const auto place = static_cast<uint64_t>(at);
    const PhiloxBlock block = philox(state.seed, base() + place / 4);
    const uint32_t bits = block.lane[place % 4];
    return bits >= threshold ? scale : A(0);
  }
};

}  // namespace sash::cuda
