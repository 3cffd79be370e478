#pragma once

#include "../reduce/reduce_block.cuh"
#include "compute.cuh"

/// Reads and writes contiguous memory in vectors of 16 bytes, and sums it. The sums have the same
/// bits for every alignment, because each thread adds the same elements.
namespace sash::cuda {

/// The number of elements in 16 bytes.
template <class T>
inline constexpr int kWidth = 16 / sizeof(T);

template <class T>
using Lane = Vector<T, kWidth<T>>;

/// The elements from `x` on, of which `left` exist; zeros after the last one.
template <class T>
__device__ Lane<T> load_lane(const T* x, int64_t left, bool aligned) {
  if (aligned && left >= kWidth<T>) return *reinterpret_cast<const Lane<T>*>(x);
  Lane<T> lane;
#pragma unroll
  for (int i = 0; i < kWidth<T>; ++i) lane.element[i] = i < left ? x[i] : T(0);
  return lane;
}

template <class T>
__device__ void store_lane(T* y, const Lane<T>& lane, int64_t left, bool aligned) {
  if (aligned && left >= kWidth<T>) {
    *reinterpret_cast<Lane<T>*>(y) = lane;
    return;
  }
#pragma unroll
  for (int i = 0; i < kWidth<T>; ++i) {
    if (i < left) y[i] = lane.element[i];
  }
}

/// The sum over the block's threads. All threads of the block call this.
template <int threads = kThreads>
__device__ double block_sum(double value) {
  return reduce_block<threads>(value, Plus{});
}

inline constexpr int kFinishThreads = 1024;

/// The second stage of a sum, run by one block: calls finish(sum of `partial`). Each thread has
/// four sums, so that four of its loads run at the same time.
template <class Finish>
__global__ void __launch_bounds__(kFinishThreads)
    finish_sum_kernel(const double* partial, int64_t count, Finish finish) {
  double sums[4] = {};
  for (int64_t i = threadIdx.x; i < count; i += 4 * kFinishThreads) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int64_t at = i + k * kFinishThreads;
      sums[k] += at < count ? partial[at] : 0;
    }
  }
  const double sum = block_sum<kFinishThreads>((sums[0] + sums[1]) + (sums[2] + sums[3]));
  if (threadIdx.x == 0) finish(sum);
}

}  // namespace sash::cuda
