#pragma once

#include <concepts>

#include "optimizer.h"

namespace sash::optim {

struct RMSpropOptions {
  double lr = 1e-2;
  double alpha = 0.99;
  double eps = 1e-8;
  double weight_decay = 0;
  double momentum = 0;
  bool master_weights = false;  ///< see `Optimizer`, also for the next
  double max_grad_norm = 0;
};

/// RMSprop (Tieleman and Hinton, 2012), in PyTorch's form: with g the gradient plus weight_decay p,
///
///     v = alpha v + (1 - alpha) g^2,  b = momentum b + g / (sqrt(v) + eps),  p -= lr b
///
/// State: `square_avg` (v) and, with momentum, `momentum_buffer` (b).
class SASH_API RMSprop : public Optimizer {
 public:
  /// `ValueError` for a negative option, or alpha not in [0, 1).
  explicit RMSprop(std::vector<Tensor> parameters, const RMSpropOptions& options = {});
  /// The same with a learning rate alone: `RMSprop(model.parameters(), 1e-3)`.
  template <std::floating_point T>
  RMSprop(std::vector<Tensor> parameters, T lr)
      : RMSprop(std::move(parameters), RMSpropOptions{.lr = lr}) {}
  explicit RMSprop(std::vector<ParamGroup> groups, const RMSpropOptions& options = {});

 protected:
  void update(Group& group, const kernels::GradientScale& scale) override;

 private:
  static void check(const std::string& op, const Hyperparameters& values);
  static std::vector<const char*> moments(const Hyperparameters& values);
};

}  // namespace sash::optim
