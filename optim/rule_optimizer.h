#pragma once

#include <vector>

#include "optimizer.h"

namespace sash::kernels {
struct RuleTensors;
}

namespace sash::optim {

/// An optimizer whose step is a rule of `ops/kernels/update_rules.h`.
class SASH_API RuleOptimizer : public Optimizer {
 protected:
  using Optimizer::Optimizer;
  /// The parameters of a group that have a gradient, with their moments as states.
  static std::vector<kernels::RuleTensors> tensors_of(const Group& group);
};

}  // namespace sash::optim
