#pragma once

#include <cmath>
#include <span>
#include <type_traits>

#include "update.h"

/// Steps of optimizers. A rule is the step of one element: each backend makes a kernel over many
/// tensors from it. A rule is made from the settings and the step of a tensor, counted from 1, and
/// is called with an element of the parameter, the scaled gradient and the states of the element.
///
/// A rule has between kFewest and kMost states. All tensors of a call have equally many.
namespace sash::kernels {

inline constexpr int kMostStates = 3;

/// One parameter p, its gradient g, and the tensors that a rule keeps of it. Without a master, all
/// have one dtype. With one, p and g are halves, the others float32: the step is made on the
/// master, and p is the master rounded. In a call, all tensors of a dtype have masters, or none.
struct RuleTensors {
  DType dtype = DType::float32;  ///< of p and g
  int64_t count = 0;
  void* parameter = nullptr;
  const void* gradient = nullptr;
  void* state[kMostStates] = {};  ///< null after the last
  int64_t* step = nullptr;        ///< steps taken before this one; the kernel adds 1. Or null
  float* master = nullptr;

  int states() const {
    int number = 0;
    while (number < kMostStates && state[number]) ++number;
    return number;
  }
};

/// The n states of an element, as a rule reads and writes them. Those after the last are zeros.
template <class C, int n>
struct States {
  C value[kMostStates] = {};
  SASH_HOST_DEVICE C& operator[](int k) { return value[k]; }
};

template <class Settings>
using RuleKernel = Kernel<void(KernelContext&, std::span<const RuleTensors>, const Settings&)>;

// ---- Adam; states: exp_avg, exp_avg_sq, and max_exp_avg_sq of AMSGrad

struct AdamSettings {
  const double* lr = nullptr;  ///< on the device
  double beta1 = 0;
  double beta2 = 0;
  double eps = 0;
  double weight_decay = 0;
  bool decoupled = false;  ///< AdamW: p *= 1 - lr wd first; else g += wd p
  GradientScale gradient{};
};

/// With t the step:
///   m += (1 - beta1) (g - m);  v = beta2 v + (1 - beta2) g^2
///   p -= lr / (1 - beta1^t) m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
/// where AMSGrad takes the largest v so far.
template <class C>
struct AdamRule {
  using Settings = AdamSettings;
  static constexpr int kFewest = 2, kMost = 3;
  C new1, beta2, new2, step_size, inverse_root, eps, shrink, weight_decay;

  SASH_HOST_DEVICE AdamRule(const AdamSettings& s, int64_t step)
      : new1(static_cast<C>(1 - s.beta1)),
        beta2(static_cast<C>(s.beta2)),
        new2(static_cast<C>(1 - s.beta2)),
        step_size(static_cast<C>(*s.lr / (1 - std::pow(s.beta1, static_cast<double>(step))))),
        inverse_root(
            static_cast<C>(1 / std::sqrt(1 - std::pow(s.beta2, static_cast<double>(step))))),
        eps(static_cast<C>(s.eps)),
        shrink(static_cast<C>(s.decoupled ? 1 - *s.lr * s.weight_decay : 1.0)),
        weight_decay(static_cast<C>(s.decoupled ? 0 : s.weight_decay)) {}

  template <int n>
  SASH_HOST_DEVICE void operator()(C& p, C g, States<C, n>& state) const {
    if (weight_decay != 0) g += weight_decay * p;
    const C mean = state[0] + new1 * (g - state[0]);
    C square = beta2 * state[1] + new2 * (g * g);
    state[0] = mean;
    state[1] = square;
    if (n == 3) state[2] = square = state[2] > square ? state[2] : square;
    p = p * shrink - step_size * (mean / (std::sqrt(square) * inverse_root + eps));
  }
};

extern SASH_API RuleKernel<AdamSettings> adam_step;

// ---- SGD; state: momentum_buffer where the momentum is not 0

struct SgdSettings {
  const double* lr = nullptr;  ///< on the device
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  GradientScale gradient{};
};

/// g += wd p;  b = g in the first step, then momentum b + (1 - dampening) g;
/// p -= lr (nesterov ? g + momentum b : b), or lr g without momentum.
template <class C>
struct SgdRule {
  using Settings = SgdSettings;
  static constexpr int kFewest = 0, kMost = 1;
  C lr, momentum, fresh, weight_decay;
  bool nesterov, first;

  SASH_HOST_DEVICE SgdRule(const SgdSettings& s, int64_t step)
      : lr(static_cast<C>(*s.lr)),
        momentum(static_cast<C>(s.momentum)),
        fresh(static_cast<C>(1 - s.dampening)),
        weight_decay(static_cast<C>(s.weight_decay)),
        nesterov(s.nesterov),
        first(step == 1) {}

  template <int n>
  SASH_HOST_DEVICE void operator()(C& p, C g, States<C, n>& state) const {
    if (weight_decay != 0) g += weight_decay * p;
    if (n == 0) {
      p -= lr * g;
      return;
    }
    const C b = first ? g : momentum * state[0] + fresh * g;
    state[0] = b;
    p -= lr * (nesterov ? g + momentum * b : b);
  }
};

extern SASH_API RuleKernel<SgdSettings> sgd_step;

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
  using Settings = LionSettings;
  static constexpr int kFewest = 1, kMost = 1;
  C lr, shrink, beta1, new1, beta2, new2;

  SASH_HOST_DEVICE LionRule(const LionSettings& s, int64_t)
      : lr(static_cast<C>(*s.lr)),
        shrink(static_cast<C>(1 - *s.lr * s.weight_decay)),
        beta1(static_cast<C>(s.beta1)),
        new1(static_cast<C>(1 - s.beta1)),
        beta2(static_cast<C>(s.beta2)),
        new2(static_cast<C>(1 - s.beta2)) {}

  SASH_HOST_DEVICE void operator()(C& p, C g, States<C, 1>& state) const {
    const C direction = new1 * g + beta1 * state[0];
    const C sign = direction != direction ? direction
                                          : static_cast<C>(static_cast<int>(direction > C(0)) -
                                                           static_cast<int>(direction < C(0)));
    p = p * shrink - lr * sign;
    state[0] = new2 * g + beta2 * state[0];
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
  using Settings = RmspropSettings;
  static constexpr int kFewest = 1, kMost = 2;
  C lr, alpha, fresh, eps, momentum, weight_decay;

  SASH_HOST_DEVICE RmspropRule(const RmspropSettings& s, int64_t)
      : lr(static_cast<C>(*s.lr)),
        alpha(static_cast<C>(s.alpha)),
        fresh(static_cast<C>(1 - s.alpha)),
        eps(static_cast<C>(s.eps)),
        momentum(static_cast<C>(s.momentum)),
        weight_decay(static_cast<C>(s.weight_decay)) {}

  template <int n>
  SASH_HOST_DEVICE void operator()(C& p, C g, States<C, n>& state) const {
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
  using Settings = MuonSettings;
  static constexpr int kFewest = 2, kMost = 2;
  C momentum;
  bool nesterov;

  SASH_HOST_DEVICE MuonRule(const MuonSettings& s, int64_t)
      : momentum(static_cast<C>(s.momentum)), nesterov(s.nesterov) {}

  SASH_HOST_DEVICE void operator()(C&, C g, States<C, 2>& state) const {
    state[0] = (1 - momentum) * g + momentum * state[0];
    state[1] = nesterov ? (1 - momentum) * g + momentum * state[0] : state[0];
  }
};

extern SASH_API RuleKernel<MuonSettings> muon_direction;

/// p = (1 - lr weight_decay) p - lr size g.
struct DecayedStepSettings {
  const double* lr = nullptr;  ///< on the device
  double size = 1;
  double weight_decay = 0;
  GradientScale gradient{};
};

template <class C>
struct DecayedStepRule {
  using Settings = DecayedStepSettings;
  static constexpr int kFewest = 0, kMost = 0;
  C step, shrink;

  SASH_HOST_DEVICE DecayedStepRule(const DecayedStepSettings& s, int64_t)
      : step(static_cast<C>(*s.lr * s.size)), shrink(static_cast<C>(1 - *s.lr * s.weight_decay)) {}

  SASH_HOST_DEVICE void operator()(C& p, C g, States<C, 0>&) const { p = p * shrink - step * g; }
};

extern SASH_API RuleKernel<DecayedStepSettings> decayed_step;

// ---- for backends

/// The name of a rule, as an argument.
template <template <class> class Rule>
struct RuleTag {};

/// Calls f(tag, slot) for every rule.
template <class F>
void for_each_rule(F f) {
  f(RuleTag<AdamRule>{}, adam_step);
  f(RuleTag<SgdRule>{}, sgd_step);
  f(RuleTag<LionRule>{}, lion_step);
  f(RuleTag<RmspropRule>{}, rmsprop_step);
  f(RuleTag<MuonRule>{}, muon_direction);
  f(RuleTag<DecayedStepRule>{}, decayed_step);
}

/// Calls f with the number of states of x as a constant of the type `std::integral_constant`.
template <class Rule, class F>
void with_states(const RuleTensors& x, F f) {
  static_assert(Rule::kMost - Rule::kFewest <= 1);
  if (x.states() == Rule::kMost) return f(std::integral_constant<int, Rule::kMost>());
  f(std::integral_constant<int, Rule::kFewest>());
}

/// Bytes that a step reads and writes: it reads the gradient, and reads and writes the parameter
/// and its states. A master is read and written in the parameter's place, which is then written.
inline void add_operands(KernelCall& call, const RuleTensors& x) {
  const int64_t element = size_of(x.dtype);
  const int64_t kept = x.master ? size_of(DType::float32) : element;
  const int64_t bytes = element + 2 * (1 + x.states()) * kept + (x.master ? element : 0);
  call.operands.push_back({x.dtype, {x.count}, x.count * bytes});
}

}  // namespace sash::kernels
