#include "adam.h"

#include <algorithm>
#include <cstring>
#include "../ops/update/run_rule.h"

namespace sash::optim {
namespace {

std::vector<ParamGroup> one_group(std::vector<Tensor> parameters) {
  return {{.parameters = std::move(parameters)}};
}

AdamOptions as_adam(const AdamWOptions& options) {
  return {options.lr,           options.beta1,   options.beta2,          options.eps,
          options.weight_decay, options.amsgrad, options.master_weights, options.max_grad_norm};
}

}  // namespace

std::vector<const char*> Adam::moments(const Hyperparameters& values) {
  const bool amsgrad = std::any_of(values.begin(), values.end(), [](const Hyperparameter& h) {
    return std::strcmp(h.name, "amsgrad") == 0;
  });
  if (amsgrad) return {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"};
  return {"exp_avg", "exp_avg_sq"};
}

Adam::Adam(const Kind& kind, bool decoupled, std::vector<ParamGroup> groups,
           Hyperparameters defaults, const StepOptions& step_options)
    : Optimizer(kind, std::move(groups), std::move(defaults), step_options),
      decoupled_(decoupled) {}

// The state names amsgrad only where it is used.
Adam::Adam(const char* name, bool decoupled, std::vector<ParamGroup> groups,
           const AdamOptions& options)
    : Adam({.name = name, .check = check_betas, .moments = moments}, decoupled, std::move(groups),
           [&] {
             Hyperparameters values{{"lr", options.lr},
                                    {"beta1", options.beta1},
                                    {"beta2", options.beta2},
                                    {"eps", options.eps},
                                    {"weight_decay", options.weight_decay}};
             if (options.amsgrad) values.push_back({"amsgrad", 1});
             return values;
           }(),
           {options.master_weights, options.max_grad_norm}) {}

Adam::Adam(std::vector<Tensor> parameters, const AdamOptions& options)
    : Adam("Adam", false, one_group(std::move(parameters)), options) {}

Adam::Adam(std::vector<ParamGroup> groups, const AdamOptions& options)
    : Adam("Adam", false, std::move(groups), options) {}

AdamW::AdamW(std::vector<Tensor> parameters, const AdamWOptions& options)
    : Adam("AdamW", true, one_group(std::move(parameters)), as_adam(options)) {}

AdamW::AdamW(std::vector<ParamGroup> groups, const AdamWOptions& options)
    : Adam("AdamW", true, std::move(groups), as_adam(options)) {}

void Adam::update(Group& group, const kernels::GradientScale& scale) {
  run_rule(kernels::adam_step, tensors_of(group), group.lr, scale,
           {.beta1 = group.value("beta1"),
            .beta2 = group.value("beta2"),
            .eps = group.value("eps"),
            .weight_decay = group.value("weight_decay"),
            .decoupled = decoupled_});
}

}  // namespace sash::optim
