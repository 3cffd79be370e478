#include "optimizer.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "../core/error.h"
#include "../tensor/autograd/grad_mode.h"
#include "../tensor/factories.h"
#include "../tensor/tensor_impl.h"

namespace sash::optim {
namespace {

void check_rate(const std::string& op, const char* what, double value) {
  if (!(value >= 0) || std::isinf(value)) {
    throw ValueError(op, std::string("a finite ") + what + " of at least 0", to_text(value));
  }
}

bool has_gradients(const std::vector<Tensor>& parameters) {
  return std::any_of(parameters.begin(), parameters.end(),
                     [](const Tensor& p) { return p.impl().grad.defined(); });
}

// Moves and casts `state` to the parameter's device and dtype.
void match_parameter(Tensor& state, DType dtype, Device device) {
  if (state.dtype() != dtype) state = state.to(dtype);
  if (state.device() != device) state = state.to(device);
}

}  // namespace

double Optimizer::value_of(const Hyperparameters& hyperparameters, const char* name) {
  for (const Hyperparameter& h : hyperparameters) {
    if (std::strcmp(h.name, name) == 0) return h.value;
  }
  throw ValueError("Optimizer", "a hyperparameter", name);
}

int64_t* Optimizer::Group::step_of(size_t parameter) const {
  return steps.tensor_view().ptr<int64_t>() + parameter;
}

Optimizer::Optimizer(const Kind& kind, std::vector<ParamGroup> groups,
                     const Hyperparameters& defaults)
    : kind_(kind) {
  for (ParamGroup& group : groups) add_group(std::move(group), defaults);
  if (parameters().empty()) throw ValueError(kind_.name, "parameters", "none");
}

Optimizer::~Optimizer() = default;
Optimizer::Optimizer(Optimizer&&) noexcept = default;
Optimizer& Optimizer::operator=(Optimizer&&) noexcept = default;

void Optimizer::check_parameter(const Tensor& parameter) const {
  if (!parameter.defined()) throw ValueError(kind_.name, "parameters", "an undefined tensor");
  if (!is_floating(parameter.dtype())) {
    throw DTypeError(kind_.name, "floating parameters", name(parameter.dtype()));
  }
  if (!parameter.is_leaf()) {
    throw ValueError(kind_.name, "leaves as parameters", "the output of a recorded op");
  }
  if (!parameter.is_contiguous()) {
    throw ValueError(kind_.name, "contiguous parameters",
                     "shape " + to_string(parameter.shape()) + " with strides " +
                         to_string(parameter.strides()));
  }
}

void Optimizer::check_values(const std::string& op, const Hyperparameters& values) const {
  kind_.check(op, values);
  for (const Hyperparameter& h : values) check_rate(op, h.name, h.value);
}

void Optimizer::add_group(ParamGroup group, const Hyperparameters& defaults) {
  Group& added = groups_.emplace_back();
  for (const Tensor& parameter : group.parameters) {
    check_parameter(parameter);
    for (const Group& other : groups_) {
      for (const Tensor& known : other.parameters) {
        if (known.is_same(parameter)) {
          throw ValueError(kind_.name, "each parameter once", "one twice");
        }
      }
    }
    added.parameters.push_back(parameter);
  }
  added.hyperparameters = defaults;
  for (Hyperparameter& h : added.hyperparameters) {
    if (group.lr && std::strcmp(h.name, "lr") == 0) h.value = *group.lr;
    if (group.weight_decay && std::strcmp(h.name, "weight_decay") == 0) {
      h.value = *group.weight_decay;
    }
  }
  check_values(kind_.name, added.hyperparameters);
}

std::vector<Tensor> Optimizer::parameters() const {
  std::vector<Tensor> all;
  for (const Group& group : groups_) {
    all.insert(all.end(), group.parameters.begin(), group.parameters.end());
  }
  return all;
}

void Optimizer::zero_grad() {
  for (Group& group : groups_) {
    for (Tensor& parameter : group.parameters) parameter.zero_grad();
  }
}

// ---- the step -----------------------------------------------------------------------------------

void Optimizer::make_state(Group& group) const {
  const Device device = group.parameters[0].device();
  std::vector<std::vector<Tensor>> moments(kind_.moments(group.hyperparameters).size());
  for (std::vector<Tensor>& moment : moments) {
    for (const Tensor& p : group.parameters) moment.push_back(zeros(p.shape(), p.options()));
  }
  group.moments = std::move(moments);
  group.lr = full({}, group.value("lr"), {.dtype = DType::float64, .device = device});
  group.steps = zeros({static_cast<int64_t>(group.parameters.size())},
                      {.dtype = DType::int64, .device = device});
}

void Optimizer::prepare(Group& group) {
  const Device device = group.parameters[0].device();
  for (Tensor& p : group.parameters) {
    if (p.device() != device) {
      throw DeviceError(std::string(kind_.name) + ".step",
                        "the parameters of a group on one device",
                        to_string(device) + " and " + to_string(p.device()));
    }
    const Tensor& g = p.impl().grad;
    if (g.defined() && !g.is_contiguous()) p.set_grad(g.contiguous());
  }
  if (!group.steps.defined()) make_state(group);
  match_parameter(group.steps, DType::int64, device);
  match_parameter(group.lr, DType::float64, device);
  for (std::vector<Tensor>& moment : group.moments) {
    for (size_t i = 0; i < moment.size(); ++i) {
      match_parameter(moment[i], group.parameters[i].dtype(), device);
    }
  }
}

void Optimizer::step() {
  const NoGradGuard no_grad;
  for (Group& group : groups_) {
    if (has_gradients(group.parameters)) prepare(group);
  }
  for (Group& group : groups_) {
    if (!has_gradients(group.parameters)) continue;
    update(group);
    for (const Tensor& p : group.parameters) {
      if (p.impl().grad.defined()) p.impl().storage->bump_version();
    }
  }
}

// ---- the learning rate --------------------------------------------------------------------------

double Optimizer::lr(size_t group) const {
  if (group < groups_.size()) return groups_[group].value("lr");
  throw IndexError(std::string(kind_.name) + ".lr",
                   "a group below " + std::to_string(groups_.size()), std::to_string(group));
}

void Optimizer::set_lr(double lr) {
  for (size_t group = 0; group < groups_.size(); ++group) set_lr(lr, group);
}

void Optimizer::set_lr(double lr, size_t group) {
  const std::string op = std::string(kind_.name) + ".set_lr";
  check_rate(op, "lr", lr);
  if (group >= groups_.size()) {
    throw IndexError(op, "a group below " + std::to_string(groups_.size()), std::to_string(group));
  }
  Group& changed = groups_[group];
  if (changed.value("lr") == lr) return;
  if (changed.lr.defined()) changed.lr.fill_(lr);
  for (Hyperparameter& h : changed.hyperparameters) {
    if (std::strcmp(h.name, "lr") == 0) h.value = lr;
  }
}

}  // namespace sash::optim
