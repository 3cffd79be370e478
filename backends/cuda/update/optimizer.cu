#include "../../../ops/kernels/update.h"

#include <cmath>

#include "tensor_pack.cuh"

namespace sash::cuda {
namespace {

using kernels::AdamSettings;
using kernels::AdamTensors;
using kernels::FlatTensor;
using kernels::SgdSettings;
using kernels::SgdTensors;

cudaStream_t stream_of(const KernelContext& context) {
  return static_cast<cudaStream_t>(context.stream.handle);
}

// ---- Adam ---------------------------------------------------------------------------------------

/// The factors that depend on a tensor's step and on the learning rate.
template <class C>
struct AdamFactors {
  C step_size, root_correction, shrink;
};

/// Increments the step of every tensor and computes its factors once, not in every block.
template <class C>
__global__ void __launch_bounds__(kThreads)
    adam_factors_kernel(const __grid_constant__ Pack<AdamTensors> pack, const AdamSettings s,
                        AdamFactors<C>* factors) {
  static_assert(Pack<AdamTensors>::kCapacity <= kThreads, "one block");
  const int i = static_cast<int>(threadIdx.x);
  if (i >= pack.size) return;
  const double lr = *s.lr, t = static_cast<double>(++*pack.tensor[i].step);
  factors[i] = {static_cast<C>(lr / (1 - std::pow(s.beta1, t))),
                static_cast<C>(std::sqrt(1 - std::pow(s.beta2, t))),
                static_cast<C>(s.decoupled ? 1 - lr * s.weight_decay : 1.0)};
}

template <bool kL2, class T>
__global__ void __launch_bounds__(kThreads)
    adam_kernel(const __grid_constant__ Pack<AdamTensors> pack, const AdamSettings s,
                const AdamFactors<compute_t<T>>* factors) {
  using C = compute_t<T>;
  const int i = pack.find(blockIdx.x);
  const AdamTensors& x = pack.tensor[i];
  T* const p = static_cast<T*>(x.parameter);
  const T* const grad = static_cast<const T*>(x.gradient);
  T* const exp_avg = static_cast<T*>(x.exp_avg);
  T* const exp_avg_sq = static_cast<T*>(x.exp_avg_sq);
  const bool aligned =
      is_aligned(p) && is_aligned(grad) && is_aligned(exp_avg) && is_aligned(exp_avg_sq);
  const AdamFactors<C> factor = factors[i];
  const C new1 = static_cast<C>(1 - s.beta1), beta2 = static_cast<C>(s.beta2);
  const C new2 = static_cast<C>(1 - s.beta2), eps = static_cast<C>(s.eps);
  const C weight_decay = static_cast<C>(s.weight_decay);
  for_each_lane<T>(pack, i, [&](int64_t at, int64_t left) {
    Lane<T> values = load_lane(p + at, left, aligned);
    const Lane<T> gradients = load_lane(grad + at, left, aligned);
    Lane<T> firsts = load_lane(exp_avg + at, left, aligned);
    Lane<T> seconds = load_lane(exp_avg_sq + at, left, aligned);
#pragma unroll
    for (int k = 0; k < kWidth<T>; ++k) {
      const C value = widen(values.element[k]);
      C g = widen(gradients.element[k]);
      if constexpr (kL2) g += weight_decay * value;
      C m = widen(firsts.element[k]), v = widen(seconds.element[k]);
      m += new1 * (g - m);
      v = beta2 * v + new2 * (g * g);
      const C direction = m / (std::sqrt(v) / factor.root_correction + eps);
      values.element[k] = narrow<T>(value * factor.shrink - factor.step_size * direction);
      firsts.element[k] = narrow<T>(m);
      seconds.element[k] = narrow<T>(v);
    }
    store_lane(p + at, values, left, aligned);
    store_lane(exp_avg + at, firsts, left, aligned);
    store_lane(exp_avg_sq + at, seconds, left, aligned);
  });
}

void adam_step(KernelContext& context, std::span<const AdamTensors> tensors,
               const AdamSettings& settings) {
  const CardGuard guard(context.device.index);
  const cudaStream_t stream = stream_of(context);
  const bool l2 = !settings.decoupled && settings.weight_decay != 0;
  // All packs share it: the stream runs them one after the other.
  const Workspace scratch(context,
                          Pack<AdamTensors>::kCapacity * int64_t{sizeof(AdamFactors<double>)});
  for_each_pack("adam_step", tensors, [&]<class S>(TypeTag<S>, const Pack<AdamTensors>& pack) {
    using T = device_t<S>;
    auto* const factors = scratch.ptr<AdamFactors<compute_t<T>>>();
    adam_factors_kernel<<<1, kThreads, 0, stream>>>(pack, settings, factors);
    SASH_CUDA_CHECK(cudaGetLastError());
    if (pack.chunks() == 0) return;
    const auto kernel = l2 ? adam_kernel<true, T> : adam_kernel<false, T>;
    kernel<<<pack.chunks(), kThreads, 0, stream>>>(pack, settings, factors);
    SASH_CUDA_CHECK(cudaGetLastError());
  });
}

// ---- SGD ----------------------------------------------------------------------------------------

__global__ void __launch_bounds__(kThreads)
    count_steps_kernel(const __grid_constant__ Pack<SgdTensors> pack) {
  static_assert(Pack<SgdTensors>::kCapacity <= kThreads, "one block");
  const int i = static_cast<int>(threadIdx.x);
  if (i < pack.size) ++*pack.tensor[i].step;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    sgd_kernel(const __grid_constant__ Pack<SgdTensors> pack, const SgdSettings s) {
  using C = compute_t<T>;
  const int i = pack.find(blockIdx.x);
  const SgdTensors& x = pack.tensor[i];
  T* const p = static_cast<T*>(x.parameter);
  const T* const grad = static_cast<const T*>(x.gradient);
  T* const buffer = static_cast<T*>(x.buffer);
  const bool aligned = is_aligned(p) && is_aligned(grad) && is_aligned(buffer);
  const bool first = *x.step == 1;
  const C lr = static_cast<C>(*s.lr), momentum = static_cast<C>(s.momentum);
  const C fresh = static_cast<C>(1 - s.dampening), weight_decay = static_cast<C>(s.weight_decay);
  const bool decays = s.weight_decay != 0, nesterov = s.nesterov;
  for_each_lane<T>(pack, i, [&](int64_t at, int64_t left) {
    Lane<T> values = load_lane(p + at, left, aligned);
    const Lane<T> gradients = load_lane(grad + at, left, aligned);
    Lane<T> buffers{};
    if (buffer && !first) buffers = load_lane(buffer + at, left, aligned);
#pragma unroll
    for (int k = 0; k < kWidth<T>; ++k) {
      const C value = widen(values.element[k]);
      C g = widen(gradients.element[k]);
      if (decays) g += weight_decay * value;
      C direction = g;
      if (buffer) {
        const C b = first ? g : momentum * widen(buffers.element[k]) + fresh * g;
        buffers.element[k] = narrow<T>(b);
        direction = nesterov ? g + momentum * b : b;
      }
      values.element[k] = narrow<T>(value - lr * direction);
    }
    store_lane(p + at, values, left, aligned);
    if (buffer) store_lane(buffer + at, buffers, left, aligned);
  });
}

void sgd_step(KernelContext& context, std::span<const SgdTensors> tensors,
              const SgdSettings& settings) {
  const CardGuard guard(context.device.index);
  const cudaStream_t stream = stream_of(context);
  for_each_pack("sgd_step", tensors, [&]<class S>(TypeTag<S>, const Pack<SgdTensors>& pack) {
    count_steps_kernel<<<1, kThreads, 0, stream>>>(pack);
    SASH_CUDA_CHECK(cudaGetLastError());
    if (pack.chunks() == 0) return;
    sgd_kernel<device_t<S>><<<pack.chunks(), kThreads, 0, stream>>>(pack, settings);
    SASH_CUDA_CHECK(cudaGetLastError());
  });
}

// ---- clipping -----------------------------------------------------------------------------------

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
  finish_sum_kernel<<<1, kThreads, 0, stream>>>(scratch.ptr<double>(), chunks, Root{norm});
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

void register_optimizer() {
  kernels::adam_step.set(DeviceType::cuda, adam_step);
  kernels::sgd_step.set(DeviceType::cuda, sgd_step);
  kernels::global_norm.set(DeviceType::cuda, global_norm);
  kernels::clip_by_norm.set(DeviceType::cuda, clip_by_norm);
  kernels::clip_by_value.set(DeviceType::cuda, clip_by_value);
}

}  // namespace sash::cuda
