#pragma once

#include <span>
#include <type_traits>

#include "../../tensor/tensor.h"
#include "../kernels/update_rules.h"

namespace sash::optim {

/// The step of a rule, with the learning rate and the scale of gradients, which `settings` leaves
/// out.
template <class Settings>
void run_rule(const kernels::RuleKernel<Settings>& rule,
              std::span<const kernels::RuleTensors> tensors, const Tensor& lr,
              const kernels::GradientScale& scale, std::type_identity_t<Settings> settings) {
  settings.lr = lr.data<const double>();
  settings.gradient = scale;
  KernelContext context = kernel_context(lr.device());
  rule(context, tensors, settings);
}

}  // namespace sash::optim
