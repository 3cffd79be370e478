#include "rule_optimizer.h"

#include "../ops/kernels/update_rules.h"
#include "../tensor/tensor_impl.h"

namespace sash::optim {

std::vector<kernels::RuleTensors> RuleOptimizer::tensors_of(const Group& group) {
  std::vector<kernels::RuleTensors> tensors;
  tensors.reserve(group.parameters.size());
  for (size_t i = 0; i < group.parameters.size(); ++i) {
    const Tensor& p = group.parameters[i];
    const Tensor& g = p.impl().grad;
    if (!g.defined()) continue;
    kernels::RuleTensors& x = tensors.emplace_back();
    x = {.dtype = p.dtype(),
         .count = p.numel(),
         .parameter = p.tensor_view().data,
         .gradient = g.tensor_view().data,
         .step = group.step_of(i),
         .master = group.master_of(i)};
    for (size_t k = 0; k < group.moments.size(); ++k) {
      x.state[k] = group.moments[k][i].tensor_view().data;
    }
  }
  return tensors;
}

}  // namespace sash::optim
