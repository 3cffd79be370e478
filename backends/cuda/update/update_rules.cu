#include "../../../ops/kernels/update_rules.h"

#include "tensor_pack.cuh"

namespace sash::cuda {
namespace {

using kernels::GradientScale;
using kernels::RuleTensors;

__global__ void __launch_bounds__(kThreads)
    count_steps_kernel(const __grid_constant__ Pack<RuleTensors> pack,
                       const GradientScale gradient) {
  static_assert(Pack<RuleTensors>::kCapacity <= kThreads, "one block");
  const int i = static_cast<int>(threadIdx.x);
  if (i < pack.size && pack.tensor[i].step && !gradient.skips()) ++*pack.tensor[i].step;
}

/// T: dtype of parameter and gradient. S: of the rest; float beside halves means masters.
template <template <class> class Rule, class T, class S, class Settings>
__global__ void __launch_bounds__(kThreads)
    rule_kernel(const __grid_constant__ Pack<RuleTensors> pack, const Settings s) {
  using C = compute_t<T>;
  constexpr bool master = !std::is_same_v<T, S>;
  constexpr int width = kWidth<T>;
  if (s.gradient.skips()) return;
  const int i = pack.find(blockIdx.x);
  const RuleTensors& x = pack.tensor[i];
  T* const parameter = static_cast<T*>(x.parameter);
  S* const p = static_cast<S*>(master ? x.master : x.parameter);
  const T* const grad = static_cast<const T*>(x.gradient);
  S* const first = static_cast<S*>(x.state[0]);
  S* const second = static_cast<S*>(x.state[1]);
  const bool aligned = is_aligned(parameter) && is_aligned(p) && is_aligned(grad) &&
                       is_aligned(first) && is_aligned(second);
  const Rule<C> rule(s);
  const C scale = static_cast<C>(kernels::kScalesGradient<Rule<C>> ? s.gradient.factor() : 1.0);
  for_each_lane<T>(pack, i, [&](int64_t at, int64_t left) {
    Wide<S, width> values = load_wide<width>(p + at, left, aligned), firsts{}, seconds{};
    const Wide<T, width> gradients = load_wide<width>(grad + at, left, aligned);
    if (first) firsts = load_wide<width>(first + at, left, aligned);
    if (second) seconds = load_wide<width>(second + at, left, aligned);
#pragma unroll
    for (int k = 0; k < width; ++k) {
      C state[2] = {firsts.element[k], seconds.element[k]};
      rule(values.element[k], gradients.element[k] * scale, state);
      firsts.element[k] = state[0];
      seconds.element[k] = state[1];
    }
    store_wide(p + at, values.element, left, aligned);
    if (first) store_wide(first + at, firsts.element, left, aligned);
    if (second) store_wide(second + at, seconds.element, left, aligned);
    if constexpr (master) store_wide(parameter + at, values.element, left, aligned);
  });
}

template <template <class> class Rule, class Settings>
void step(KernelContext& context, std::span<const RuleTensors> tensors, const Settings& settings) {
  const CardGuard guard(context.device.index);
  const auto stream = static_cast<cudaStream_t>(context.stream.handle);
  for_each_pack("step", tensors, [&]<class D>(TypeTag<D>, const Pack<RuleTensors>& pack) {
    using T = device_t<D>;
    count_steps_kernel<<<1, kThreads, 0, stream>>>(pack, settings.gradient);
    SASH_CUDA_CHECK(cudaGetLastError());
    if (pack.chunks() == 0) return;
    auto kernel = rule_kernel<Rule, T, T, Settings>;
    if constexpr (kIsHalf<T>) {
      if (pack.tensor[0].master) kernel = rule_kernel<Rule, T, float, Settings>;
    }
    kernel<<<pack.chunks(), kThreads, 0, stream>>>(pack, settings);
    SASH_CUDA_CHECK(cudaGetLastError());
  });
}

}  // namespace

void register_update_rules() {
  kernels::lion_step.set(DeviceType::cuda, step<kernels::LionRule, kernels::LionSettings>);
  kernels::rmsprop_step.set(DeviceType::cuda, step<kernels::RmspropRule, kernels::RmspropSettings>);
  kernels::muon_direction.set(DeviceType::cuda, step<kernels::MuonRule, kernels::MuonSettings>);
  kernels::decayed_step.set(DeviceType::cuda,
                            step<kernels::DecayedStepRule, kernels::DecayedStepSettings>);
}

}  // namespace sash::cuda
