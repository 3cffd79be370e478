#include "../../../ops/kernels/update_rules.h"

#include "chunks.h"

namespace sash::cpu {
namespace {

using kernels::kMostStates;
using kernels::RuleTensors;

template <int kStates, class Rule, class T>
void apply(const Rule& given, T scale, int64_t n, T* __restrict p, const T* __restrict grad,
           T* __restrict first, T* __restrict second, T* __restrict third) {
  const Rule rule = given;  // a copy, which stays in registers
  for (int64_t i = 0; i < n; ++i) {
    kernels::States<T, kStates> state;
    if constexpr (kStates > 0) state[0] = first[i];
    if constexpr (kStates > 1) state[1] = second[i];
    if constexpr (kStates > 2) state[2] = third[i];
    rule(p[i], grad[i] * scale, state);
    if constexpr (kStates > 0) first[i] = state[0];
    if constexpr (kStates > 1) second[i] = state[1];
    if constexpr (kStates > 2) third[i] = state[2];
  }
}

/// A step of the elements from `begin` to `end` of x; halves are widened block by block.
template <int kStates, template <class> class Rule, class T, class Settings>
void apply_chunk(const Settings& settings, const RuleTensors& x, int64_t begin, int64_t end) {
  using C = compute_t<T>;
  const Rule<C> rule(settings, x.step ? *x.step : 0);
  const C scale = static_cast<C>(settings.gradient.factor());
  T* const p = static_cast<T*>(x.parameter);
  const T* const grad = static_cast<const T*>(x.gradient);
  const auto state = [&]<class S>(TypeTag<S>, int k, int64_t at) {
    return k < kStates ? static_cast<S*>(x.state[k]) + at : nullptr;
  };
  const auto run = [&](int64_t n, C* values, const C* gradients, auto kept) {
    apply<kStates>(rule, scale, n, values, gradients, kept(0), kept(1), kept(2));
  };
  if constexpr (!kIsHalf<T>) {
    run(end - begin, p + begin, grad + begin, [&](int k) { return state(TypeTag<T>{}, k, begin); });
  } else {
    float g[kBlock], wide[kBlock], kept[kMostStates][kBlock];
    for (int64_t at = begin; at < end; at += kBlock) {
      const int64_t n = std::min(kBlock, end - at);
      widen(grad + at, n, g);
      if (x.master) {
        run(n, x.master + at, g, [&](int k) { return state(TypeTag<float>{}, k, at); });
        narrow(x.master + at, n, p + at);
        continue;
      }
      widen(p + at, n, wide);
      for (int k = 0; k < kStates; ++k) widen(state(TypeTag<T>{}, k, at), n, kept[k]);
      run(n, wide, g, [&](int k) { return kept[k]; });
      narrow(wide, n, p + at);
      for (int k = 0; k < kStates; ++k) narrow(kept[k], n, state(TypeTag<T>{}, k, at));
    }
  }
}

template <template <class> class Rule>
void step(KernelContext& context, std::span<const RuleTensors> tensors,
          const typename Rule<float>::Settings& settings) {
  check_dtypes("step", tensors);
  if (settings.gradient.skips()) return;
  for (const RuleTensors& x : tensors) {
    if (x.step) ++*x.step;
  }
  const Chunks<RuleTensors> chunks(context, tensors);
  chunks.run([&](int64_t, const RuleTensors& x, int64_t begin, int64_t end) {
    dispatch_any_floating(x.dtype, "step", [&]<class T>(TypeTag<T>) {
      kernels::with_states<Rule<float>>(x, [&]<int kStates>(std::integral_constant<int, kStates>) {
        apply_chunk<kStates, Rule, T>(settings, x, begin, end);
      });
    });
  });
}

}  // namespace

void register_update_rules() {
  kernels::for_each_rule([]<template <class> class Rule>(kernels::RuleTag<Rule>, auto& slot) {
    slot.set(DeviceType::cpu, step<Rule>);
  });
}

}  // namespace sash::cpu
