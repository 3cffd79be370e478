#pragma once

#include <concepts>

#include "optimizer.h"

namespace sash::optim {

struct SGDOptions {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  bool master_weights = false;  ///< see `Optimizer`, also for the next
  double max_grad_norm = 0;
};

/// Gradient descent with momentum (Sutskever et al., 2013), in PyTorch's form: with g the gradient
/// plus weight_decay p, b = g in the first step and momentum b + (1 - dampening) g after it, and
/// p -= lr b, or lr (g + momentum b) with Nesterov's momentum. State: `momentum_buffer`, with
/// momentum.
class SASH_API SGD : public Optimizer {
 public:
  /// `ValueError` for a negative option, or nesterov without momentum or with dampening.
  explicit SGD(std::vector<Tensor> parameters, const SGDOptions& options = {});
  /// The same with a learning rate alone: `SGD(model.parameters(), 1e-3)`.
  template <std::floating_point T>
  SGD(std::vector<Tensor> parameters, T lr) : SGD(std::move(parameters), SGDOptions{.lr = lr}) {}
  explicit SGD(std::vector<ParamGroup> groups, const SGDOptions& options = {});

 protected:
  void update(Group& group, const kernels::GradientScale& scale) override;

 private:
  static void check(const std::string& op, const Hyperparameters& values);
  static std::vector<const char*> moments(const Hyperparameters& values);
};

}  // namespace sash::optim
