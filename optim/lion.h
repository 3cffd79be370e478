#pragma once

#include <concepts>

#include "optimizer.h"

namespace sash::optim {

struct LionOptions {
  double lr = 1e-4;  ///< about a tenth of AdamW's
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0;      ///< about ten times AdamW's
  bool master_weights = false;  ///< see `Optimizer`, also for the next
  double max_grad_norm = 0;
};

/// Lion (Chen et al., "Symbolic discovery of optimization algorithms", 2023):
///
///     p = (1 - lr weight_decay) p - lr sign(beta1 m + (1 - beta1) g)
///     m = beta2 m + (1 - beta2) g
///
/// State: `exp_avg` (m).
class SASH_API Lion : public Optimizer {
 public:
  /// `ValueError` for a negative option, or a beta not in [0, 1).
  explicit Lion(std::vector<Tensor> parameters, const LionOptions& options = {});
  /// The same with a learning rate alone: `Lion(model.parameters(), 1e-3)`.
  template <std::floating_point T>
  Lion(std::vector<Tensor> parameters, T lr) : Lion(std::move(parameters), LionOptions{.lr = lr}) {}
  explicit Lion(std::vector<ParamGroup> groups, const LionOptions& options = {});

 protected:
  void update(Group& group, const kernels::GradientScale& scale) override;
};

}  // namespace sash::optim
