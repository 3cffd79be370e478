#pragma once

#include <concepts>

#include "optimizer.h"

namespace sash::optim {

struct AdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool amsgrad = false;
  bool master_weights = false;  ///< see `Optimizer`, also for the next
  double max_grad_norm = 0;
};

/// Adam (Kingma and Ba, 2015). With g the gradient plus weight_decay p, and t counted from 1:
///
///     m += (1 - beta1) (g - m),  v = beta2 v + (1 - beta2) g^2
///     p -= lr / (1 - beta1^t) m / (sqrt(v / (1 - beta2^t)) + eps)
///
/// With `amsgrad` (Reddi, Kale and Kumar, 2018) the root is of the largest v so far.
///
/// State: `exp_avg` (m), `exp_avg_sq` (v), with amsgrad `max_exp_avg_sq`. Each parameter counts the
/// steps in which it had a gradient.
///
/// State has the parameters' dtype unless `master_weights` makes it float32, which halves need to
/// train well: in bfloat16, steps below 1/256 of a weight are lost, and in float16 a gradient below
/// 5e-3 makes v vanish (its least number is 6e-8) and the step explode.
class SASH_API Adam : public Optimizer {
 public:
  /// `ValueError` for a negative option, or a beta not in [0, 1).
  explicit Adam(std::vector<Tensor> parameters, const AdamOptions& options = {});
  /// The same with a learning rate alone: `Adam(model.parameters(), 1e-3)`.
  template <std::floating_point T>
  Adam(std::vector<Tensor> parameters, T lr) : Adam(std::move(parameters), AdamOptions{.lr = lr}) {}
  explicit Adam(std::vector<ParamGroup> groups, const AdamOptions& options = {});

 protected:
  Adam(const char* name, bool decoupled, std::vector<ParamGroup> groups,
       const AdamOptions& options);
  /// For optimizers that train some groups so: `defaults` have lr, betas, eps and weight_decay.
  Adam(const Kind& kind, bool decoupled, std::vector<ParamGroup> groups, Hyperparameters defaults,
       const StepOptions& step_options);
  static std::vector<const char*> moments(const Hyperparameters& values);
  void update(Group& group, const kernels::GradientScale& scale) override;

 private:
  bool decoupled_;
};

struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
  bool amsgrad = false;
  bool master_weights = false;  ///< see `Optimizer`, also for the next
  double max_grad_norm = 0;
};

/// Adam with decoupled weight decay (Loshchilov and Hutter, 2019): p *= 1 - lr weight_decay, then
/// Adam's step on the gradient alone.
class SASH_API AdamW : public Adam {
 public:
  /// `ValueError` for a negative option, or a beta not in [0, 1).
  explicit AdamW(std::vector<Tensor> parameters, const AdamWOptions& options = {});
  /// The same with a learning rate alone: `AdamW(model.parameters(), 1e-3)`.
  template <std::floating_point T>
  AdamW(std::vector<Tensor> parameters, T lr)
      : AdamW(std::move(parameters), AdamWOptions{.lr = lr}) {}
  explicit AdamW(std::vector<ParamGroup> groups, const AdamWOptions& options = {});
};

}  // namespace sash::optim
