#pragma once

/// Reductions over the threads of a warp and of a block, in an order that never changes.
namespace sash::cuda {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

struct Plus {
  __device__ auto operator()(auto a, auto b) const { return a + b; }
};
/// The larger of a and b. Ignores a NaN in `b`; `a` must not be NaN.
struct Larger {
  __device__ auto operator()(auto a, auto b) const { return a < b ? b : a; }
};

template <class T>
__device__ T shuffle_xor(T x, int step, unsigned lanes = kAllLanes) {
  return __shfl_xor_sync(lanes, x, step);
}

/// Reduces x over each aligned group of `lanes` lanes of a warp by the commutative `f`. All lanes
/// of a group get the same bits.
template <int lanes = kWarp, class T, class F>
__device__ T reduce_warp(T x, F f) {
#pragma unroll
  for (int step = lanes / 2; step > 0; step /= 2) {
    if constexpr (lanes == kWarp) {
      x = f(x, shuffle_xor(x, step));
    } else {
      const unsigned first = threadIdx.x % kWarp / lanes * lanes;
      x = f(x, shuffle_xor(x, step, ((1u << lanes) - 1) << first));
    }
  }
  return x;
}

/// Inclusive prefix sum over the lanes of a warp.
template <class A>
__device__ A scan_warp(A x) {
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const A before = __shfl_up_sync(kAllLanes, x, step);
    if (static_cast<int>(threadIdx.x) % kWarp >= step) x += before;
  }
  return x;
}

/// Reduces x over the block as `reduce_warp` does. All threads of the block call this.
template <int threads, class T, class F>
__device__ T reduce_block(T x, F f) {
  constexpr int warps = threads / kWarp;
  __shared__ T part[warps];
  x = reduce_warp(x, f);
  __syncthreads();  // all threads have read the parts of the previous call
  if (threadIdx.x % kWarp == 0) part[threadIdx.x / kWarp] = x;
  __syncthreads();
  x = part[0];
#pragma unroll
  for (int w = 1; w < warps; ++w) x = f(x, part[w]);
  return x;
}

}  // namespace sash::cuda
