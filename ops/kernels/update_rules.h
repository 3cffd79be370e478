#pragma once

#include <cmath>
#include <span>

#include "update.h"

/// Steps whose formula is the same for each element: a rule per optimizer, from which each backend
/// makes its kernel over many tensors. A rule is constructed from the settings, and called with an
/// element of the parameter, its scaled gradient and its states.
namespace sash::kernels {

/// One parameter p, its gradient g, and up to two tensors that a rule keeps. Dtypes and masters as
/// in `AdamTensors`.
struct RuleTensors {
  DType dtype = DType::float32;
  int64_t count = 0;
  void* parameter = nullptr;
  const void* gradient = nullptr;
  void* state[2] = {};
  int64_t* step = nullptr;  ///< or null; the kernel adds 1
  float* master = nullptr;
};

template <class Settings>
using RuleKernel = Kernel<void(KernelContext&, std::span<const RuleTensors>, const Settings&)>;

// ---- Lion; state: exp_avg

struct LionSettings {
  const double* lr = nullptr;  ///< on the device
  double beta1 = 0;
  double beta2 = 0;
  double weight_decay = 0;
  GradientScale gradient{};
};

template <class C>
struct LionRule {
  C lr, shrink, beta1, new1, beta2, new2;

  SASH_HOST_DEVICE explicit LionRule(const LionSettings& s)
      : lr(static_cast<C>(*s.lr)),
        shrink(static_cast<C>(1 - *s.lr * s.weight_decay)),
        beta1(static_cast<C>(s.beta1)),
        new1(static_cast<C>(1 - s.beta1)),
        beta2(static_cast<C>(s.beta2)),
        new2(static_cast<C>(1 - s.beta2)) {}

  SASH_HOST_DEVICE void operator()(C& p, C g, C (&state)[2]) const {
    const C direction = beta1 * state[0] + new1 * g;
    const C sign = direction != direction ? direction
                                          : static_cast<C>(static_cast<int>(direction > C(0)) -
                                                           static_cast<int>(direction < C(0)));
    p = p * shrink - lr * sign;
    state[0] = beta2 * state[0] + new2 * g;
  }
};

extern SASH_API RuleKernel<LionSettings> lion_step;

// ---- RMSprop; states: square_avg, and momentum_buffer where the momentum is not 0

struct RmspropSettings {
  const double* lr = nullptr;  ///< on the device
  double alpha = 0;
  double eps = 0;
  double momentum = 0;
  double weight_decay = 0;
  GradientScale gradient{};
};

template <class C>
struct RmspropRule {
  C lr, alpha, fresh, eps, momentum, weight_decay;

  SASH_HOST_DEVICE explicit RmspropRule(const RmspropSettings& s)
      : lr(static_cast<C>(*s.lr)),
        alpha(static_cast<C>(s.alpha)),
        fresh(static_cast<C>(1 - s.alpha)),
        eps(static_cast<C>(s.eps)),
        momentum(static_cast<C>(s.momentum)),
        weight_decay(static_cast<C>(s.weight_decay)) {}

  SASH_HOST_DEVICE void operator()(C& p, C g, C (&state)[2]) const {
    g += weight_decay * p;
    state[0] = alpha * state[0] + fresh * (g * g);
    state[1] = momentum * state[1] + g / (std::sqrt(state[0]) + eps);
    p -= lr * state[1];
  }
};

extern SASH_API RuleKernel<RmspropSettings> rmsprop_step;

// ---- Muon, before and after its matrix products; states: momentum_buffer and the direction to
// make orthogonal, which the first writes

struct MuonSettings {
  double momentum = 0;
  bool nesterov = false;
  GradientScale gradient{};
};

template <class C>
struct MuonRule {
  C momentum;
  bool nesterov;

  SASH_HOST_DEVICE explicit MuonRule(const MuonSettings& s)
      : momentum(static_cast<C>(s.momentum)), nesterov(s.nesterov) {}

  SASH_HOST_DEVICE void operator()(C&, C g, C (&state)[2]) const {
    state[0] = momentum * state[0] + (1 - momentum) * g;
    state[1] = nesterov ? (1 - momentum) * g + momentum * state[0] : state[0];
  }
};

extern SASH_API RuleKernel<MuonSettings> muon_direction;

/// p = (1 - lr weight_decay) p - lr size g. The gradient's scale says only whether to skip.
struct DecayedStepSettings {
  const double* lr = nullptr;  ///< on the device
  double size = 1;
  double weight_decay = 0;
  GradientScale gradient{};
};

template <class C>
struct DecayedStepRule {
  static constexpr bool kScalesGradient = false;
  C step, shrink;

  SASH_HOST_DEVICE explicit DecayedStepRule(const DecayedStepSettings& s)
      : step(static_cast<C>(*s.lr * s.size)), shrink(static_cast<C>(1 - *s.lr * s.weight_decay)) {}

  SASH_HOST_DEVICE void operator()(C& p, C g, C (&)[2]) const { p = p * shrink - step * g; }
};

extern SASH_API RuleKernel<DecayedStepSettings> decayed_step;

/// Whether the kernel multiplies the gradient before it calls the rule.
template <class Rule>
inline constexpr bool kScalesGradient = !requires {
  Rule::kScalesGradient;
};

}  // namespace sash::kernels
