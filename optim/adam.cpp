#include "adam.h"

#include "../core/error.h"
#include "../tensor/tensor_impl.h"

namespace sash::optim {
namespace {

std::vector<ParamGroup> one_group(std::vector<Tensor> parameters) {
  return {{.parameters = std::move(parameters)}};
}

AdamOptions as_adam(const AdamWOptions& options) {
  return {options.lr,           options.beta1,          options.beta2,        options.eps,
          options.weight_decay, options.master_weights, options.max_grad_norm};
}

}  // namespace

void Adam::check(const std::string& op, const Hyperparameters& values) {
  for (const char* const which : {"beta1", "beta2"}) {
    const double beta = value_of(values, which);
    if (beta >= 0 && beta < 1) continue;
    throw ValueError(op, std::string(which) + " in [0, 1)", to_text(beta));
  }
}

std::vector<const char*> Adam::moments(const Hyperparameters&) { return {"exp_avg", "exp_avg_sq"}; }

Adam::Adam(const char* name, bool decoupled, std::vector<ParamGroup> groups,
           const AdamOptions& options)
    : Optimizer({.name = name, .check = check, .moments = moments}, std::move(groups),
                {{"lr", options.lr},
                 {"beta1", options.beta1},
                 {"beta2", options.beta2},
                 {"eps", options.eps},
                 {"weight_decay", options.weight_decay}},
                {options.master_weights, options.max_grad_norm}),
      decoupled_(decoupled) {}

Adam::Adam(std::vector<Tensor> parameters, const AdamOptions& options)
    : Adam("Adam", false, one_group(std::move(parameters)), options) {}

Adam::Adam(std::vector<ParamGroup> groups, const AdamOptions& options)
    : Adam("Adam", false, std::move(groups), options) {}

AdamW::AdamW(std::vector<Tensor> parameters, const AdamWOptions& options)
    : Adam("AdamW", true, one_group(std::move(parameters)), as_adam(options)) {}

AdamW::AdamW(std::vector<ParamGroup> groups, const AdamWOptions& options)
    : Adam("AdamW", true, std::move(groups), as_adam(options)) {}

void Adam::update(Group& group, const kernels::GradientScale& scale) {
  tensors_.clear();
  for (size_t i = 0; i < group.parameters.size(); ++i) {
    const Tensor& p = group.parameters[i];
    const Tensor& g = p.impl().grad;
    if (!g.defined()) continue;
    tensors_.push_back({p.dtype(), p.numel(), p.tensor_view().data, g.tensor_view().data,
                        group.moments[0][i].tensor_view().data,
                        group.moments[1][i].tensor_view().data, group.step_of(i),
                        group.master_of(i)});
  }
  const kernels::AdamSettings settings{.lr = group.lr.data<const double>(),
                                       .beta1 = group.value("beta1"),
                                       .beta2 = group.value("beta2"),
                                       .eps = group.value("eps"),
                                       .weight_decay = group.value("weight_decay"),
                                       .decoupled = decoupled_,
                                       .gradient = scale};
  KernelContext context = kernel_context(group.lr.device());
  kernels::adam_step(context, tensors_, settings);
}

}  // namespace sash::optim
