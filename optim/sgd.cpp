#include "sgd.h"

#include "../core/error.h"
#include "../ops/kernels/update.h"
#include "../tensor/tensor_impl.h"

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
  std::vector<kernels::SgdTensors> tensors;
  tensors.reserve(group.parameters.size());
  for (size_t i = 0; i < group.parameters.size(); ++i) {
    const Tensor& p = group.parameters[i];
    const Tensor& g = p.impl().grad;
    if (!g.defined()) continue;
    void* buffer = group.moments.empty() ? nullptr : group.moments[0][i].tensor_view().data;
    tensors.push_back({p.dtype(), p.numel(), p.tensor_view().data, g.tensor_view().data, buffer,
                       group.step_of(i), group.master_of(i)});
  }
  const kernels::SgdSettings settings{.lr = group.lr.data<const double>(),
                                      .momentum = group.value("momentum"),
                                      .dampening = group.value("dampening"),
                                      .weight_decay = group.value("weight_decay"),
                                      .nesterov = group.value("nesterov") != 0,
                                      .gradient = scale};
  KernelContext context = kernel_context(group.lr.device());
  kernels::sgd_step(context, tensors, settings);
}

}  // namespace sash::optim
