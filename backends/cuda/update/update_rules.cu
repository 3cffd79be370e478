#include "../../../ops/kernels/update_rules.h"

#include "tensor_pack.cuh"

namespace sash::cuda {
namespace {

using kernels::RuleTensors;

/// What a step needs for one tensor.
template <class Rule, class C>
struct TensorStep {
  Rule rule;
  C scale;  ///< of gradients
  bool skip;
};

/// Counts the step of every tensor and makes its rule once, not in every block.
template <class Rule, class C>
__global__ void __launch_bounds__(kThreads)
    begin_steps_kernel(const __grid_constant__ Pack<RuleTensors> pack,
                       const typename Rule::Settings s, TensorStep<Rule, C>* steps) {
  static_assert(Pack<RuleTensors>::kCapacity <= kThreads, "one block");
  const int i = static_cast<int>(threadIdx.x);
  if (i >= pack.size) return;
  const bool skip = s.gradient.skips();
  int64_t* const counter = pack.tensor[i].step;
  if (counter && !skip) ++*counter;
  steps[i] = {Rule(s, counter ? *counter : 0), static_cast<C>(s.gradient.factor()), skip};
}

/// T: dtype of parameter and gradient. S: of the rest; float beside halves means masters.
template <int kStates, class T, class S, class Rule>
__global__ void __launch_bounds__(kThreads)
    rule_kernel(const __grid_constant__ Pack<RuleTensors> pack,
                const TensorStep<Rule, compute_t<T>>* steps) {
  using C = compute_t<T>;
  constexpr bool master = !std::is_same_v<T, S>;
  constexpr int width = kWidth<T>;
  const int i = pack.find(blockIdx.x);
  const TensorStep<Rule, C> step = steps[i];
  if (step.skip) return;
  const RuleTensors& x = pack.tensor[i];
  T* const parameter = static_cast<T*>(x.parameter);
  S* const p = static_cast<S*>(master ? x.master : x.parameter);
  const T* const grad = static_cast<const T*>(x.gradient);
  bool aligned = is_aligned(parameter) && is_aligned(p) && is_aligned(grad);
#pragma unroll
  for (int k = 0; k < kStates; ++k) aligned = aligned && is_aligned(x.state[k]);
  for_each_lane<T>(pack, i, [&](int64_t at, int64_t left) {
    Wide<S, width> values = load_wide<width>(p + at, left, aligned), kept[kStates + 1];
    const Wide<T, width> gradients = load_wide<width>(grad + at, left, aligned);
#pragma unroll
    for (int k = 0; k < kStates; ++k) {
      kept[k] = load_wide<width>(static_cast<S*>(x.state[k]) + at, left, aligned);
    }
#pragma unroll
    for (int e = 0; e < width; ++e) {
      kernels::States<C, kStates> state;
#pragma unroll
      for (int k = 0; k < kStates; ++k) state[k] = kept[k].element[e];
      step.rule(values.element[e], gradients.element[e] * step.scale, state);
#pragma unroll
      for (int k = 0; k < kStates; ++k) kept[k].element[e] = state[k];
    }
    store_wide(p + at, values.element, left, aligned);
#pragma unroll
    for (int k = 0; k < kStates; ++k) {
      store_wide(static_cast<S*>(x.state[k]) + at, kept[k].element, left, aligned);
    }
    if constexpr (master) store_wide(parameter + at, values.element, left, aligned);
  });
}

template <template <class> class Rule>
void step(KernelContext& context, std::span<const RuleTensors> tensors,
          const typename Rule<float>::Settings& settings) {
  const CardGuard guard(context.device.index);
  const auto stream = static_cast<cudaStream_t>(context.stream.handle);
  // All packs share it: the stream runs them one after the other.
  const Workspace scratch(
      context, Pack<RuleTensors>::kCapacity * int64_t{sizeof(TensorStep<Rule<double>, double>)});
  for_each_pack("step", tensors, [&]<class D>(TypeTag<D>, const Pack<RuleTensors>& pack) {
    using T = device_t<D>;
    using R = Rule<compute_t<T>>;
    auto* const steps = scratch.ptr<TensorStep<R, compute_t<T>>>();
    begin_steps_kernel<<<1, kThreads, 0, stream>>>(pack, settings, steps);
    SASH_CUDA_CHECK(cudaGetLastError());
    if (pack.chunks() == 0) return;
    // A tensor with elements, whose pointers are set: those of empty tensors may be null.
    const RuleTensors& any = pack.tensor[pack.find(0)];
    kernels::with_states<R>(any, [&]<int n>(std::integral_constant<int, n>) {
      auto kernel = rule_kernel<n, T, T, R>;
      if constexpr (kIsHalf<T>) {
        if (any.master) kernel = rule_kernel<n, T, float, R>;
      }
      kernel<<<pack.chunks(), kThreads, 0, stream>>>(pack, steps);
      SASH_CUDA_CHECK(cudaGetLastError());
    });
  });
}

}  // namespace

void register_update_rules() {
  kernels::for_each_rule([]<template <class> class Rule>(kernels::RuleTag<Rule>, auto& slot) {
    slot.set(DeviceType::cuda, step<Rule>);
  });
}

}  // namespace sash::cuda
