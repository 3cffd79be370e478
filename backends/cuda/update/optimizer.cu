#include "../../../ops/kernels/update.h"

#include <cmath>

#include "tensor_pack.cuh"

namespace sash::cuda {
namespace {

using kernels::AdamSettings;
using kernels::AdamTensors;
using kernels::SgdSettings;
using kernels::SgdTensors;

cudaStream_t stream_of(const KernelContext& context) {
  return static_cast<cudaStream_t>(context.stream.handle);
}

// ---- Adam ---------------------------------------------------------------------------------------

/// The factors that depend on a tensor's step, the learning rate and the gradients' norm.
template <class C>
struct AdamFactors {
  C scale, step_size, inverse_root, shrink;
  bool skip;
};

/// Increments the step of every tensor and computes its factors once, not in every block.
template <class C>
__global__ void __launch_bounds__(kThreads)
    adam_factors_kernel(const __grid_constant__ Pack<AdamTensors> pack, const AdamSettings s,
                        AdamFactors<C>* factors) {
  static_assert(Pack<AdamTensors>::kCapacity <= kThreads, "one block");
  const int i = static_cast<int>(threadIdx.x);
  if (i >= pack.size) return;
  if (s.gradient.skips()) {
    factors[i].skip = true;
    return;
  }
  const double lr = *s.lr, t = static_cast<double>(++*pack.tensor[i].step);
  factors[i] = {static_cast<C>(s.gradient.factor()),
                static_cast<C>(lr / (1 - std::pow(s.beta1, t))),
                static_cast<C>(1 / std::sqrt(1 - std::pow(s.beta2, t))),
                static_cast<C>(s.decoupled ? 1 - lr * s.weight_decay : 1.0), false};
}

/// T: dtype of parameter and gradient. S: of the rest; float beside halves means masters.
template <bool kL2, class T, class S>
__global__ void __launch_bounds__(kThreads)
    adam_kernel(const __grid_constant__ Pack<AdamTensors> pack, const AdamSettings s,
                const AdamFactors<compute_t<T>>* factors) {
  using C = compute_t<T>;
  constexpr bool master = !std::is_same_v<T, S>;
  constexpr int width = kWidth<T>;
  const int i = pack.find(blockIdx.x);
  const AdamFactors<C> factor = factors[i];
  if (factor.skip) return;
  const AdamTensors& x = pack.tensor[i];
  T* const parameter = static_cast<T*>(x.parameter);
  S* const p = static_cast<S*>(master ? x.master : x.parameter);
  const T* const grad = static_cast<const T*>(x.gradient);
  S* const exp_avg = static_cast<S*>(x.exp_avg);
  S* const exp_avg_sq = static_cast<S*>(x.exp_avg_sq);
  S* const most = static_cast<S*>(x.max_exp_avg_sq);
  const bool aligned = is_aligned(parameter) && is_aligned(p) && is_aligned(grad) &&
                       is_aligned(exp_avg) && is_aligned(exp_avg_sq) && is_aligned(most);
  const C new1 = static_cast<C>(1 - s.beta1), beta2 = static_cast<C>(s.beta2);
  const C new2 = static_cast<C>(1 - s.beta2), eps = static_cast<C>(s.eps);
  const C weight_decay = static_cast<C>(s.weight_decay);
  for_each_lane<T>(pack, i, [&](int64_t at, int64_t left) {
    Wide<S, width> values = load_wide<width>(p + at, left, aligned);
    const Wide<T, width> gradients = load_wide<width>(grad + at, left, aligned);
    Wide<S, width> firsts = load_wide<width>(exp_avg + at, left, aligned);
    Wide<S, width> seconds = load_wide<width>(exp_avg_sq + at, left, aligned), largest{};
    if (most) largest = load_wide<width>(most + at, left, aligned);
#pragma unroll
    for (int k = 0; k < width; ++k) {
      C &value = values.element[k], &m = firsts.element[k], &v = seconds.element[k];
      C g = gradients.element[k] * factor.scale;
      if constexpr (kL2) g += weight_decay * value;
      m += new1 * (g - m);
      v = beta2 * v + new2 * (g * g);
      C square = v;
      if (most) square = largest.element[k] = largest.element[k] > v ? largest.element[k] : v;
      value = value * factor.shrink -
              factor.step_size * (m / (std::sqrt(square) * factor.inverse_root + eps));
    }
    store_wide(p + at, values.element, left, aligned);
    store_wide(exp_avg + at, firsts.element, left, aligned);
    store_wide(exp_avg_sq + at, seconds.element, left, aligned);
    if (most) store_wide(most + at, largest.element, left, aligned);
    if constexpr (master) store_wide(parameter + at, values.element, left, aligned);
  });
}

template <class T, class S>
void launch_adam(cudaStream_t stream, const Pack<AdamTensors>& pack, const AdamSettings& settings,
                 const AdamFactors<compute_t<T>>* factors) {
  const bool l2 = !settings.decoupled && settings.weight_decay != 0;
  const auto kernel = l2 ? adam_kernel<true, T, S> : adam_kernel<false, T, S>;
  kernel<<<pack.chunks(), kThreads, 0, stream>>>(pack, settings, factors);
  SASH_CUDA_CHECK(cudaGetLastError());
}

void adam_step(KernelContext& context, std::span<const AdamTensors> tensors,
               const AdamSettings& settings) {
  const CardGuard guard(context.device.index);
  const cudaStream_t stream = stream_of(context);
  // All packs share it: the stream runs them one after the other.
  const Workspace scratch(context,
                          Pack<AdamTensors>::kCapacity * int64_t{sizeof(AdamFactors<double>)});
  for_each_pack("adam_step", tensors, [&]<class D>(TypeTag<D>, const Pack<AdamTensors>& pack) {
    using T = device_t<D>;
    auto* const factors = scratch.ptr<AdamFactors<compute_t<T>>>();
    adam_factors_kernel<<<1, kThreads, 0, stream>>>(pack, settings, factors);
    SASH_CUDA_CHECK(cudaGetLastError());
    if (pack.chunks() == 0) return;
    if constexpr (kIsHalf<T>) {
      if (pack.tensor[0].master) return launch_adam<T, float>(stream, pack, settings, factors);
    }
    launch_adam<T, T>(stream, pack, settings, factors);
  });
}

// ---- SGD ----------------------------------------------------------------------------------------

__global__ void __launch_bounds__(kThreads)
    count_steps_kernel(const __grid_constant__ Pack<SgdTensors> pack,
                       const kernels::GradientScale gradient) {
  static_assert(Pack<SgdTensors>::kCapacity <= kThreads, "one block");
  const int i = static_cast<int>(threadIdx.x);
  if (i < pack.size && !gradient.skips()) ++*pack.tensor[i].step;
}

/// T and S as in `adam_kernel`.
template <class T, class S>
__global__ void __launch_bounds__(kThreads)
    sgd_kernel(const __grid_constant__ Pack<SgdTensors> pack, const SgdSettings s) {
  using C = compute_t<T>;
  constexpr bool master = !std::is_same_v<T, S>;
  constexpr int width = kWidth<T>;
  if (s.gradient.skips()) return;
  const int i = pack.find(blockIdx.x);
  const SgdTensors& x = pack.tensor[i];
  T* const parameter = static_cast<T*>(x.parameter);
  S* const p = static_cast<S*>(master ? x.master : x.parameter);
  const T* const grad = static_cast<const T*>(x.gradient);
  S* const buffer = static_cast<S*>(x.buffer);
  const bool aligned =
      is_aligned(parameter) && is_aligned(p) && is_aligned(grad) && is_aligned(buffer);
  const bool first = *x.step == 1;
  const C lr = static_cast<C>(*s.lr), momentum = static_cast<C>(s.momentum);
  const C fresh = static_cast<C>(1 - s.dampening), weight_decay = static_cast<C>(s.weight_decay);
  const C scale = static_cast<C>(s.gradient.factor());
  const bool decays = s.weight_decay != 0, nesterov = s.nesterov;
  for_each_lane<T>(pack, i, [&](int64_t at, int64_t left) {
    Wide<S, width> values = load_wide<width>(p + at, left, aligned);
    const Wide<T, width> gradients = load_wide<width>(grad + at, left, aligned);
    Wide<S, width> buffers{};
    if (buffer && !first) buffers = load_wide<width>(buffer + at, left, aligned);
#pragma unroll
    for (int k = 0; k < width; ++k) {
      C g = gradients.element[k] * scale;
      if (decays) g += weight_decay * values.element[k];
      C direction = g;
      if (buffer) {
        const C b = first ? g : momentum * buffers.element[k] + fresh * g;
        buffers.element[k] = b;
        direction = nesterov ? g + momentum * b : b;
      }
      values.element[k] -= lr * direction;
    }
    store_wide(p + at, values.element, left, aligned);
    if (buffer) store_wide(buffer + at, buffers.element, left, aligned);
    if constexpr (master) store_wide(parameter + at, values.element, left, aligned);
  });
}

void sgd_step(KernelContext& context, std::span<const SgdTensors> tensors,
              const SgdSettings& settings) {
  const CardGuard guard(context.device.index);
  const cudaStream_t stream = stream_of(context);
  for_each_pack("sgd_step", tensors, [&]<class D>(TypeTag<D>, const Pack<SgdTensors>& pack) {
    using T = device_t<D>;
    count_steps_kernel<<<1, kThreads, 0, stream>>>(pack, settings.gradient);
    SASH_CUDA_CHECK(cudaGetLastError());
    if (pack.chunks() == 0) return;
    auto kernel = sgd_kernel<T, T>;
    if constexpr (kIsHalf<T>) {
      if (pack.tensor[0].master) kernel = sgd_kernel<T, float>;
    }
    kernel<<<pack.chunks(), kThreads, 0, stream>>>(pack, settings);
    SASH_CUDA_CHECK(cudaGetLastError());
  });
}

}  // namespace

void register_optimizer() {
  kernels::adam_step.set(DeviceType::cuda, adam_step);
  kernels::sgd_step.set(DeviceType::cuda, sgd_step);
}

}  // namespace sash::cuda
