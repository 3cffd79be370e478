#pragma once

#include "../ops/kernels/update_rules.h"
#include "optimizer.h"

namespace sash::optim {

/// An optimizer whose step is a rule of `ops/kernels/update_rules.h`.
class SASH_API RuleOptimizer : public Optimizer {
 protected:
  using Optimizer::Optimizer;
  /// The parameters of a group that have a gradient, with their moments as states.
  std::span<const kernels::RuleTensors> tensors_of(const Group& group);

 private:
  std::vector<kernels::RuleTensors> tensors_;  // kept for its memory
};

}  // namespace sash::optim
