#include "../../../ops/kernels/update_rules.h"

#include "chunks.h"

namespace sash::cpu {
namespace {

using kernels::RuleTensors;

template <class Rule, class T>
void apply(const Rule& given, T scale, int64_t n, T* __restrict p, const T* __restrict grad,
           T* __restrict first, T* __restrict second) {
  const Rule rule = given;  // a copy, which stays in registers
  for (int64_t i = 0; i < n; ++i) {
    T state[2] = {first ? first[i] : T(0), second ? second[i] : T(0)};
    rule(p[i], kernels::kScalesGradient<Rule> ? grad[i] * scale : grad[i], state);
    if (first) first[i] = state[0];
    if (second) second[i] = state[1];
  }
}

template <template <class> class Rule, class T, class Settings>
void apply_chunk(const Settings& settings, const RuleTensors& x, int64_t begin, int64_t end) {
  T* const p = static_cast<T*>(x.parameter);
  const T* const grad = static_cast<const T*>(x.gradient);
  const auto state = [&]<class S>(TypeTag<S>, int k, int64_t at) {
    return x.state[k] ? static_cast<S*>(x.state[k]) + at : nullptr;
  };
  const double scale = settings.gradient.factor();
  if constexpr (!kIsHalf<T>) {
    apply(Rule<T>(settings), static_cast<T>(scale), end - begin, p + begin, grad + begin,
          state(TypeTag<T>{}, 0, begin), state(TypeTag<T>{}, 1, begin));
  } else {
    const Rule<float> rule(settings);
    float g[kBlock], wide[kBlock], kept[2][kBlock];
    for (int64_t at = begin; at < end; at += kBlock) {
      const int64_t n = std::min(kBlock, end - at);
      widen(grad + at, n, g);
      if (x.master) {
        apply(rule, static_cast<float>(scale), n, x.master + at, g, state(TypeTag<float>{}, 0, at),
              state(TypeTag<float>{}, 1, at));
        narrow(x.master + at, n, p + at);
        continue;
      }
      T* const halves[] = {state(TypeTag<T>{}, 0, at), state(TypeTag<T>{}, 1, at)};
      widen(p + at, n, wide);
      for (int k = 0; k < 2; ++k) {
        if (halves[k]) widen(halves[k], n, kept[k]);
      }
      apply(rule, static_cast<float>(scale), n, wide, g, halves[0] ? kept[0] : nullptr,
            halves[1] ? kept[1] : nullptr);
      narrow(wide, n, p + at);
      for (int k = 0; k < 2; ++k) {
        if (halves[k]) narrow(kept[k], n, halves[k]);
      }
    }
  }
}

template <template <class> class Rule, class Settings>
void step(KernelContext& context, std::span<const RuleTensors> tensors, const Settings& settings) {
  check_dtypes("step", tensors);
  if (settings.gradient.skips()) return;
  for (const RuleTensors& x : tensors) {
    if (x.step) ++*x.step;
  }
  const Chunks<RuleTensors> chunks(context, tensors);
  chunks.run([&](int64_t, const RuleTensors& x, int64_t begin, int64_t end) {
    dispatch_any_floating(x.dtype, "step", [&]<class T>(TypeTag<T>) {
      apply_chunk<Rule, T>(settings, x, begin, end);
    });
  });
}

}  // namespace

void register_update_rules() {
  kernels::lion_step.set(DeviceType::cpu, step<kernels::LionRule, kernels::LionSettings>);
  kernels::rmsprop_step.set(DeviceType::cpu, step<kernels::RmspropRule, kernels::RmspropSettings>);
  kernels::muon_direction.set(DeviceType::cpu, step<kernels::MuonRule, kernels::MuonSettings>);
  kernels::decayed_step.set(DeviceType::cpu,
                            step<kernels::DecayedStepRule, kernels::DecayedStepSettings>);
}

}  // namespace sash::cpu
