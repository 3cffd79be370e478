#include "sgd.h"

#include "../core/error.h"
#include "../ops/update/run_rule.h"

namespace sash::optim {

void SGD::check(const std::string& op, const Hyperparameters& values) {
  const double momentum = value_of(values, "momentum"), dampening = value_of(values, "dampening");
  if (value_of(values, "nesterov") == 0 || (momentum > 0 && dampening == 0)) return;
  throw ValueError(op, "momentum > 0 and dampening 0 for nesterov",
                   to_text(momentum) + " and " + to_text(dampening));
}

std::vector<const char*> SGD::moments(const Hyperparameters& values) {
  if (value_of(values, "momentum") > 0) return {"momentum_buffer"};
  return {};
}

SGD::SGD(std::vector<Tensor> parameters, const SGDOptions& options)
    : SGD(std::vector<ParamGroup>{{.parameters = std::move(parameters)}}, options) {}

SGD::SGD(std::vector<ParamGroup> groups, const SGDOptions& options)
    : Optimizer({.name = "SGD", .check = check, .moments = moments}, std::move(groups),
                {{"lr", options.lr},
                 {"momentum", options.momentum},
                 {"dampening", options.dampening},
                 {"weight_decay", options.weight_decay},
                 {"nesterov", options.nesterov ? 1.0 : 0.0}},
                {options.master_weights, options.max_grad_norm}) {}

void SGD::update(Group& group, const kernels::GradientScale& scale) {
  run_rule(kernels::sgd_step, tensors_of(group), group.lr, scale,
           {.momentum = group.value("momentum"),
            .dampening = group.value("dampening"),
            .weight_decay = group.value("weight_decay"),
            .nesterov = group.value("nesterov") != 0});
}

}  // namespace sash::optim
