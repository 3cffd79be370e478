#include "rmsprop.h"

#include "../core/error.h"
#include "../ops/update/run_rule.h"

namespace sash::optim {

void RMSprop::check(const std::string& op, const Hyperparameters& values) {
  const double alpha = value_of(values, "alpha");
  if (!(alpha >= 0 && alpha < 1)) throw ValueError(op, "alpha in [0, 1)", to_text(alpha));
}

std::vector<const char*> RMSprop::moments(const Hyperparameters& values) {
  if (value_of(values, "momentum") > 0) return {"square_avg", "momentum_buffer"};
  return {"square_avg"};
}

RMSprop::RMSprop(std::vector<Tensor> parameters, const RMSpropOptions& options)
    : RMSprop(std::vector<ParamGroup>{{.parameters = std::move(parameters)}}, options) {}

RMSprop::RMSprop(std::vector<ParamGroup> groups, const RMSpropOptions& options)
    : Optimizer({.name = "RMSprop", .check = check, .moments = moments}, std::move(groups),
                {{"lr", options.lr},
                 {"alpha", options.alpha},
                 {"eps", options.eps},
                 {"weight_decay", options.weight_decay},
                 {"momentum", options.momentum}},
                {options.master_weights, options.max_grad_norm}) {}

void RMSprop::update(Group& group, const kernels::GradientScale& scale) {
  run_rule(kernels::rmsprop_step, tensors_of(group), group.lr, scale,
           {.alpha = group.value("alpha"),
            .eps = group.value("eps"),
            .momentum = group.value("momentum"),
            .weight_decay = group.value("weight_decay")});
}

}  // namespace sash::optim
