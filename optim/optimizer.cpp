#include "optimizer.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "../core/error.h"
#include "../ops/elementwise/binary.h"
#include "../ops/elementwise/compare.h"
#include "../ops/elementwise/where.h"
#include "../ops/kernels/update.h"
#include "../ops/update/optimizer.h"
#include "../tensor/autograd/grad_mode.h"
#include "../tensor/factories.h"
#include "../tensor/graph.h"
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

// A graph would make it anew in each replay.
void refuse_new_state() {
  detail::refuse_in_graph("Optimizer.step", "state from an earlier step", "none");
}

// Moves and casts `state` to the parameter's device and dtype.
void match_parameter(Tensor& state, DType dtype, Device device) {
  if (state.dtype() == dtype && state.device() == device) return;
  detail::refuse_in_graph("Optimizer.step", "state that matches its parameter", "one to be moved");
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

void Optimizer::check_betas(const std::string& op, const Hyperparameters& values) {
  for (const char* const which : {"beta1", "beta2"}) {
    const double beta = value_of(values, which);
    if (!(beta >= 0 && beta < 1))
      throw ValueError(op, std::string(which) + " in [0, 1)", to_text(beta));
  }
}

int64_t* Optimizer::Group::step_of(size_t parameter) const {
  return steps.tensor_view().ptr<int64_t>() + parameter;
}

float* Optimizer::Group::master_of(size_t parameter) const {
  const Tensor& master = masters[parameter];
  return master.defined() ? master.tensor_view().ptr<float>() : nullptr;
}

Optimizer::Optimizer(const Kind& kind, std::vector<ParamGroup> groups, Hyperparameters defaults,
                     const StepOptions& step_options)
    : kind_(kind), defaults_(std::move(defaults)), step_options_(step_options) {
  if (!(step_options.max_grad_norm >= 0)) {
    throw ValueError(kind_.name, "a max_grad_norm of at least 0",
                     to_text(step_options.max_grad_norm));
  }
  for (const ParamGroup& group : groups) add_group(group);
  if (groups_.empty() || parameters().empty()) throw ValueError(kind_.name, "parameters", "none");
}

Optimizer::~Optimizer() = default;
Optimizer::Optimizer(Optimizer&&) noexcept = default;
Optimizer& Optimizer::operator=(Optimizer&&) noexcept = default;

void Optimizer::refuse_moved(const char* method) const {
  throw ValueError(std::string(kind_.name) + "." + method, "an optimizer",
                   "one that was moved from");
}

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

Optimizer::Hyperparameters Optimizer::values_of(const ParamGroup& group) const {
  const std::pair<const char*, std::optional<double>> given[] = {
      {"lr", group.lr},
      {"weight_decay", group.weight_decay},
      {"momentum", group.momentum},
      {"beta1", group.beta1},
      {"beta2", group.beta2},
      {"eps", group.eps},
      {"ns_steps", group.ns_steps ? std::optional(static_cast<double>(*group.ns_steps))
                                  : std::optional<double>()}};
  Hyperparameters values = defaults_;
  for (const auto& [name, value] : given) {
    if (!value) continue;
    const auto own = std::find_if(values.begin(), values.end(), [name = name](const auto& h) {
      return std::strcmp(h.name, name) == 0;
    });
    if (own == values.end()) {
      throw ValueError(kind_.name, "no " + std::string(name) + " in a group", to_text(*value));
    }
    own->value = *value;
  }
  check_values(kind_.name, values);
  return values;
}

// `DeviceError` of `op` unless a group is on one device: kernels take a whole group.
void Optimizer::check_group_device(const std::string& op, const std::vector<Tensor>& group) {
  for (const Tensor& p : group) {
    if (p.device() == group[0].device()) continue;
    throw DeviceError(op, "the parameters of a group on one device (make a group for each device)",
                      to_string(group[0].device()) + " and " + to_string(p.device()));
  }
}

void Optimizer::add_group(const ParamGroup& group) {
  std::vector<Tensor> known = groups_.empty() ? std::vector<Tensor>() : parameters();
  for (const Tensor& parameter : group.parameters) {
    check_parameter(parameter);
    for (const Tensor& other : known) {
      if (other.is_same(parameter)) {
        throw ValueError(kind_.name, "each parameter once", "one twice");
      }
    }
    known.push_back(parameter);
  }
  const Hyperparameters values = values_of(group);
  for (const Tensor& parameter : group.parameters) {
    if (kind_.check_parameter) kind_.check_parameter(kind_.name, values, parameter);
  }
  check_group_device(kind_.name, group.parameters);
  Group& added = groups_.emplace_back();
  added.parameters = group.parameters;
  added.hyperparameters = values;
}

void Optimizer::add_param_group(ParamGroup group) {
  check_here("add_param_group");
  if (group.parameters.empty()) {
    throw ValueError(std::string(kind_.name) + ".add_param_group", "parameters", "none");
  }
  add_group(group);
  detail::outdate_graphs();
}

std::vector<Tensor> Optimizer::parameters() const {
  check_here("parameters");
  std::vector<Tensor> all;
  for (const Group& group : groups_) {
    all.insert(all.end(), group.parameters.begin(), group.parameters.end());
  }
  return all;
}

void Optimizer::zero_grad() {
  check_here("zero_grad");
  for (Group& group : groups_) {
    for (Tensor& parameter : group.parameters) parameter.zero_grad();
  }
}

// ---- the step -----------------------------------------------------------------------------------

bool Optimizer::wants_master(const Tensor& parameter) const {
  return step_options_.master_weights && is_half(parameter.dtype());
}

TensorOptions Optimizer::state_options(const Tensor& parameter) const {
  return {.dtype = wants_master(parameter) ? DType::float32 : parameter.dtype(),
          .device = parameter.device()};
}

void Optimizer::make_state(Group& group) const {
  refuse_new_state();
  const Device device = group.parameters[0].device();
  group.moments.assign(kind_.moments(group.hyperparameters).size(),
                       std::vector<Tensor>(group.parameters.size()));
  group.masters.assign(group.parameters.size(), Tensor());
  group.versions.assign(group.parameters.size(), -1);
  group.lr = full({}, group.value("lr"), {.dtype = DType::float64, .device = device});
  group.steps = zeros({static_cast<int64_t>(group.parameters.size())},
                      {.dtype = DType::int64, .device = device});
}

void Optimizer::prepare_master(Group& group, size_t parameter) const {
  const Tensor p = group.parameters[parameter].detach();
  Tensor& master = group.masters[parameter];
  const int64_t version = p.impl().storage->version();
  if (!wants_master(p)) {
    master = Tensor();
  } else if (!master.defined()) {
    refuse_new_state();
    master = p.to(DType::float32);
  } else {
    match_parameter(master, DType::float32, p.device());
    if (group.versions[parameter] == version) return;
    detail::refuse_in_graph("Optimizer.step", "parameters that only the optimizer writes",
                            "others");
    refresh_master(group, parameter);
  }
  group.versions[parameter] = version;
}

// Where the parameter is not what its master rounds to, it was written since: takes that value.
void Optimizer::refresh_master(Group& group, size_t parameter) {
  const Tensor p = group.parameters[parameter].detach();
  Tensor& master = group.masters[parameter];
  master.copy_(where(eq(master.to(p.dtype()), p), master, p.to(DType::float32)));
}

// A replay must notice writes to parameters, and count its own.
void Optimizer::follow_replays(Group& group) {
  const auto for_each_master = [&group](auto f) {
    const NoGradGuard no_grad;
    for (size_t i = 0; i < group.masters.size(); ++i) {
      const int64_t version = group.parameters[i].impl().storage->version();
      if (group.masters[i].defined() && group.versions[i] != version) f(i, version);
    }
  };
  detail::on_replay(
      [=, &group] { for_each_master([&](size_t i, int64_t) { refresh_master(group, i); }); },
      [=, &group] {
        for_each_master([&](size_t i, int64_t version) { group.versions[i] = version; });
      });
}

void Optimizer::prepare(Group& group) {
  const Device device = group.parameters[0].device();
  for (Tensor& p : group.parameters) {
    const Tensor& g = p.impl().grad;
    if (g.defined() && !g.is_contiguous()) p.set_grad(g.contiguous());
  }
  if (!group.steps.defined()) make_state(group);
  match_parameter(group.steps, DType::int64, device);
  match_parameter(group.lr, DType::float64, device);
  for (size_t i = 0; i < group.parameters.size(); ++i) {
    const Tensor& p = group.parameters[i];
    const TensorOptions options = state_options(p);
    for (std::vector<Tensor>& moment : group.moments) {
      if (moment[i].defined()) {
        match_parameter(moment[i], *options.dtype, device);
      } else if (p.impl().grad.defined()) {
        refuse_new_state();
        moment[i] = zeros(p.shape(), options);
      }
    }
    if (group.masters[i].defined() || p.impl().grad.defined()) prepare_master(group, i);
  }
}

kernels::GradientScale Optimizer::gradient_scale(const Tensor& loss_scale) {
  const double max_norm = step_options_.max_grad_norm;
  if (max_norm == 0 && !loss_scale.defined()) {
    raw_grad_norm_ = grad_norm_ = Tensor();
    return {};
  }
  std::vector<Tensor> gradients;
  for (const Group& group : groups_) {
    for (const Tensor& p : group.parameters) {
      if (p.impl().grad.defined()) gradients.push_back(p.impl().grad);
    }
  }
  if (gradients.empty()) {
    const Device device = parameters()[0].device();
    raw_grad_norm_ = grad_norm_ = zeros({}, {.dtype = DType::float64, .device = device});
    return {};
  }
  raw_grad_norm_ = global_norm(gradients);
  grad_norm_ = loss_scale.defined() ? raw_grad_norm_ / loss_scale : raw_grad_norm_;
  kernels::GradientScale scale{.norm = raw_grad_norm_.data<const double>()};
  if (max_norm > 0) scale.max_norm = max_norm;
  if (loss_scale.defined()) scale.loss_scale = loss_scale.data<const double>();
  return scale;
}

// Kernels skip such steps if there is a loss scale.
void Optimizer::step() {
  check_here("step");
  const Device device = parameters()[0].device();
  if (step_options_.skip_nonfinite && (!one_.defined() || one_.device() != device)) {
    one_ = ones({}, {.dtype = DType::float64, .device = device});
  }
  scaled_step(step_options_.skip_nonfinite ? one_ : Tensor());
}

void Optimizer::set_max_grad_norm(double max_norm) {
  check_here("set_max_grad_norm");
  if (!(max_norm >= 0)) {
    throw ValueError(std::string(kind_.name) + ".set_max_grad_norm", "a norm of at least 0",
                     to_text(max_norm));
  }
  step_options_.max_grad_norm = max_norm;
}

// Before a step writes anything: parameters may have moved since they were given.
void Optimizer::check_devices(bool one_norm) const {
  const Tensor* first = nullptr;
  for (const Group& group : groups_) {
    if (!has_gradients(group.parameters)) continue;
    check_group_device(std::string(kind_.name) + ".step", group.parameters);
    for (const Tensor& p : group.parameters) {
      if (!one_norm || !p.impl().grad.defined()) continue;
      if (!first) first = &p;
      if (p.device() == first->device()) continue;
      throw DeviceError(std::string(kind_.name) + ".step",
                        "all parameters on one device (max_grad_norm, skip_nonfinite and "
                        "GradScaler take one norm of all gradients)",
                        to_string(first->device()) + " and " + to_string(p.device()));
    }
  }
}

Tensor Optimizer::scaled_step(const Tensor& loss_scale) {
  check_here("step");
  const NoGradGuard no_grad;
  check_devices(step_options_.max_grad_norm > 0 || loss_scale.defined());
  for (const Tensor& p : Graph::recording() ? parameters() : std::vector<Tensor>()) {
    detail::note_gradient(p.impl(), true);
  }
  for (Group& group : groups_) {
    if (!has_gradients(group.parameters)) continue;
    prepare(group);
    if (Graph::recording()) follow_replays(group);
  }
  const kernels::GradientScale scale = gradient_scale(loss_scale);
  for (Group& group : groups_) {
    if (!has_gradients(group.parameters)) continue;
    update(group, scale);
    for (const Tensor& p : group.parameters) {
      if (p.impl().grad.defined()) p.impl().storage->bump_version();
    }
  }
  // After all writes, since parameters may share memory.
  for (Group& group : groups_) {
    for (size_t i = 0; i < group.masters.size(); ++i) {
      const TensorImpl& p = group.parameters[i].impl();
      if (p.grad.defined()) group.versions[i] = p.storage->version();
    }
  }
  return raw_grad_norm_;
}

// ---- the learning rate --------------------------------------------------------------------------

double Optimizer::lr(size_t group) const {
  check_here("lr");
  if (group < groups_.size()) return groups_[group].value("lr");
  throw IndexError(std::string(kind_.name) + ".lr",
                   "a group below " + std::to_string(groups_.size()), std::to_string(group));
}

void Optimizer::set_lr(double lr) {
  check_here("set_lr");
  for (size_t group = 0; group < groups_.size(); ++group) set_lr(lr, group);
}

void Optimizer::set_lr(double lr, size_t group) {
  check_here("set_lr");
  const std::string op = std::string(kind_.name) + ".set_lr";
  check_rate(op, "lr", lr);
  detail::refuse_in_graph(op, "rates set before the step", "one set in it");
  if (group >= groups_.size()) {
    throw IndexError(op, "a group below " + std::to_string(groups_.size()), std::to_string(group));
  }
  Group& changed = groups_[group];
  changed.initial_lr.reset();
  if (changed.value("lr") == lr) return;
  if (changed.lr.defined()) changed.lr.fill_(lr);
  for (Hyperparameter& h : changed.hyperparameters) {
    if (std::strcmp(h.name, "lr") == 0) h.value = lr;
  }
}

}  // namespace sash::optim
