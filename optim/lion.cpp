#include "lion.h"
#include "../ops/update/run_rule.h"

namespace sash::optim {

Lion::Lion(std::vector<Tensor> parameters, const LionOptions& options)
    : Lion(std::vector<ParamGroup>{{.parameters = std::move(parameters)}}, options) {}

Lion::Lion(std::vector<ParamGroup> groups, const LionOptions& options)
    : Optimizer(
          {.name = "Lion",
           .check = check_betas,
           .moments = [](const Hyperparameters&) { return std::vector<const char*>{"exp_avg"}; }},
          std::move(groups),
          {{"lr", options.lr},
           {"beta1", options.beta1},
           {"beta2", options.beta2},
           {"weight_decay", options.weight_decay}},
          {options.master_weights, options.max_grad_norm}) {}

void Lion::update(Group& group, const kernels::GradientScale& scale) {
  run_rule(kernels::lion_step, tensors_of(group), group.lr, scale,
           {.beta1 = group.value("beta1"),
            .beta2 = group.value("beta2"),
            .weight_decay = group.value("weight_decay")});
}

}  // namespace sash::optim
