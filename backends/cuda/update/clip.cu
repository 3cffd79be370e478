#include <cmath>

#include "../../../ops/kernels/update.h"
#include "tensor_pack.cuh"

namespace sash::cuda {
namespace {

using kernels::FlatTensor;

cudaStream_t stream_of(const KernelContext& context) {
  return static_cast<cudaStream_t>(context.stream.handle);
}

/// partial[chunk] = sum of squares of the chunk.
template <class T>
__global__ void __launch_bounds__(kThreads)
    squares_kernel(const __grid_constant__ Pack<FlatTensor> pack, double* partial) {
  const int i = pack.find(blockIdx.x);
  const T* const x = static_cast<const T*>(pack.tensor[i].data);
  const bool aligned = is_aligned(x);
  double sum = 0;
  for_each_lane<T>(pack, i, [&](int64_t at, int64_t left) {
    const Lane<T> values = load_lane(x + at, left, aligned);
#pragma unroll
    for (int k = 0; k < kWidth<T>; ++k) {
      const auto value = static_cast<double>(widen(values.element[k]));
      sum += value * value;
    }
  });
  sum = block_sum(sum);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

struct Root {
  double* norm;
  __device__ void operator()(double sum) const { *norm = std::sqrt(sum); }
};

void global_norm(KernelContext& context, std::span<const FlatTensor> tensors, double* norm) {
  const CardGuard guard(context.device.index);
  const cudaStream_t stream = stream_of(context);
  int64_t chunks = 0;
  for (const FlatTensor& x : tensors) chunks += Pack<FlatTensor>::chunks_of(x);
  const Workspace scratch(context, chunks * int64_t{sizeof(double)});
  double* partial = scratch.ptr<double>();
  for_each_pack("global_norm", tensors, [&]<class S>(TypeTag<S>, const Pack<FlatTensor>& pack) {
    if (pack.chunks() == 0) return;
    squares_kernel<device_t<S>><<<pack.chunks(), kThreads, 0, stream>>>(pack, partial);
    SASH_CUDA_CHECK(cudaGetLastError());
    partial += pack.chunks();
  });
  finish_sum_kernel<<<1, kFinishThreads, 0, stream>>>(scratch.ptr<double>(), chunks, Root{norm});
  SASH_CUDA_CHECK(cudaGetLastError());
}

/// x = f(x) for the elements of the block's chunk.
template <class T, class F>
__device__ void update_chunk(const Pack<FlatTensor>& pack, F f) {
  const int i = pack.find(blockIdx.x);
  T* const x = static_cast<T*>(pack.tensor[i].data);
  const bool aligned = is_aligned(x);
  for_each_lane<T>(pack, i, [&](int64_t at, int64_t left) {
    Lane<T> values = load_lane(x + at, left, aligned);
#pragma unroll
    for (int k = 0; k < kWidth<T>; ++k) {
      values.element[k] = narrow<T>(f(widen(values.element[k])));
    }
    store_lane(x + at, values, left, aligned);
  });
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    clip_by_norm_kernel(const __grid_constant__ Pack<FlatTensor> pack, const double* norm,
                        double max_norm) {
  const double factor = max_norm / (*norm + 1e-6);
  if (factor >= 1) return;
  using C = compute_t<T>;
  update_chunk<T>(pack, [by = static_cast<C>(factor)](C x) { return x * by; });
}

void clip_by_norm(KernelContext& context, std::span<const FlatTensor> tensors, const double* norm,
                  double max_norm) {
  const CardGuard guard(context.device.index);
  const cudaStream_t stream = stream_of(context);
  for_each_pack("clip_by_norm", tensors, [&]<class S>(TypeTag<S>, const Pack<FlatTensor>& pack) {
    if (pack.chunks() == 0) return;
    clip_by_norm_kernel<device_t<S>><<<pack.chunks(), kThreads, 0, stream>>>(pack, norm, max_norm);
    SASH_CUDA_CHECK(cudaGetLastError());
  });
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    clip_by_value_kernel(const __grid_constant__ Pack<FlatTensor> pack, double limit) {
  using C = compute_t<T>;
  update_chunk<T>(pack, [high = static_cast<C>(limit)](C x) {
    const C above = x < -high ? -high : x;
    return above > high ? high : above;
  });
}

void clip_by_value(KernelContext& context, std::span<const FlatTensor> tensors, double limit) {
  const CardGuard guard(context.device.index);
  const cudaStream_t stream = stream_of(context);
  for_each_pack("clip_by_value", tensors, [&]<class S>(TypeTag<S>, const Pack<FlatTensor>& pack) {
    if (pack.chunks() == 0) return;
    clip_by_value_kernel<device_t<S>><<<pack.chunks(), kThreads, 0, stream>>>(pack, limit);
    SASH_CUDA_CHECK(cudaGetLastError());
  });
}

}  // namespace

void register_clip() {
  kernels::global_norm.set(DeviceType::cuda, global_norm);
  kernels::clip_by_norm.set(DeviceType::cuda, clip_by_norm);
  kernels::clip_by_value.set(DeviceType::cuda, clip_by_value);
}

}  // namespace sash::cuda
