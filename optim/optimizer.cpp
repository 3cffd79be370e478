#include "optimizer.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "../core/error.h"
#include "../ops/elementwise/binary.h"
#include "../ops/elementwise/compare.h"
#include "../ops/elementwise/where.h"
#include "../ops/kernels/update.h"
#include "../ops/kernels/update_rules.h"
#include "../ops/update/optimizer.h"
#include "../tensor/autograd/grad_mode.h"
#include "../tensor/factories.h"
#include "../tensor/graph.h"
#include "../tensor/tensor_impl.h"

namespace sash::optim {
namespace {

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

kernels::RuleTensors Optimizer::Group::tensors(size_t parameter) const {
  const Tensor &p = parameters[parameter], &master = masters[parameter];
  kernels::RuleTensors x{.dtype = p.dtype(),
                         .count = is_split(parameter) ? p.numel() / ranks.size() : p.numel(),
                         .parameter = part(parameter, p).tensor_view().data,
                         .gradient = gradient(parameter).tensor_view().data,
                         .step = steps.tensor_view().ptr<int64_t>() + parameter,
                         .master = master.defined() ? master.tensor_view().ptr<float>() : nullptr};
  for (size_t k = 0; k < moments.size(); ++k) {
    x.state[k] = moments[k][parameter].tensor_view().data;
  }
  return x;
}

bool Optimizer::Group::is_split(size_t parameter) const {
  if (ranks.size() == 1) return false;
  const int64_t count = parameters[parameter].numel();
  return count > 0 && count % ranks.size() == 0;
}

Tensor Optimizer::Group::part(size_t parameter, const Tensor& x) const {
  if (!is_split(parameter)) return x;
  const int64_t share = x.numel() / ranks.size();
  return x.detach().view({-1}).narrow(0, ranks.rank() * share, share);
}

Tensor Optimizer::Group::whole(size_t parameter, const Tensor& state) const {
  if (!is_split(parameter)) return state.detach();
  return ranks.all_gather(state).view(parameters[parameter].shape());
}

bool Optimizer::Group::has_gradient(size_t parameter) const {
  return reduced[parameter].defined() || parameters[parameter].impl().grad.defined();
}

bool Optimizer::Group::has_gradients() const {
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (has_gradient(i)) return true;
  }
  return false;
}

Tensor Optimizer::Group::gradient(size_t parameter) const {
  if (reduced[parameter].defined()) return reduced[parameter];
  return part(parameter, parameters[parameter].impl().grad);
}

std::span<const kernels::RuleTensors> Optimizer::tensors_of(const Group& group) {
  tensors_.clear();
  for (size_t i = 0; i < group.parameters.size(); ++i) {
    if (group.has_gradient(i)) tensors_.push_back(group.tensors(i));
  }
  return tensors_;
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

void Optimizer::zero_grad() {
  check_here("zero_grad");
  for (Group& group : groups_) {
    for (Tensor& parameter : group.parameters) parameter.zero_grad();
    for (Tensor& part : group.reduced) part = Tensor();
  }
}

void Optimizer::shard(const distributed::Group& ranks) {
  check_here("shard");
  if (ranks_.size() > 1) {
    throw ValueError(std::string(kind_.name) + ".shard", "a whole state", "one that has parts");
  }
  const NoGradGuard no_grad;
  ranks_ = ranks;
  for (Group& group : groups_) {
    group.ranks = ranks;
    const auto keep_part = [&](size_t i, Tensor& state) {
      if (state.defined() && group.is_split(i)) state = group.part(i, state).clone();
    };
    for (size_t i = 0; i < group.masters.size(); ++i) {
      for (std::vector<Tensor>& moment : group.moments) keep_part(i, moment[i]);
      keep_part(i, group.masters[i]);
    }
  }
  detail::outdate_graphs();
}

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
  const Tensor p = group.part(parameter, group.parameters[parameter].detach());
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
  const Tensor p = group.part(parameter, group.parameters[parameter].detach());
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
      } else if (group.has_gradient(i)) {
        refuse_new_state();
        moment[i] = zeros(group.part(i, p).shape(), options);
      }
    }
    if (group.masters[i].defined() || group.has_gradient(i)) prepare_master(group, i);
  }
}

kernels::GradientScale Optimizer::gradient_scale(const Tensor& loss_scale) {
  const double max_norm = step_options_.max_grad_norm;
  if (max_norm == 0 && !loss_scale.defined()) {
    raw_grad_norm_ = grad_norm_ = Tensor();
    return {};
  }
  std::vector<Tensor> gradients, parts;
  for (const Group& group : groups_) {
    for (size_t i = 0; i < group.parameters.size(); ++i) {
      if (group.has_gradient(i))
        (group.is_split(i) ? parts : gradients).push_back(group.gradient(i));
    }
  }
  if (gradients.empty() && parts.empty()) {
    const Device device = parameters()[0].device();
    raw_grad_norm_ = grad_norm_ = zeros({}, {.dtype = DType::float64, .device = device});
    return {};
  }
  if (parts.empty()) {
    raw_grad_norm_ = global_norm(gradients);
  } else {
    Tensor squares = square(global_norm(parts));
    ranks_.all_reduce(squares);
    if (!gradients.empty()) squares = squares + square(global_norm(gradients));
    raw_grad_norm_ = sqrt(squares);
  }
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
    if (!group.has_gradients()) continue;
    check_group_device(std::string(kind_.name) + ".step", group.parameters);
    for (size_t i = 0; i < group.parameters.size(); ++i) {
      const Tensor& p = group.parameters[i];
      if (!one_norm || !group.has_gradient(i)) continue;
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
    if (!group.has_gradients()) continue;
    prepare(group);
    if (Graph::recording()) follow_replays(group);
  }
  const kernels::GradientScale scale = gradient_scale(loss_scale);
  for (Group& group : groups_) {
    if (!group.has_gradients()) continue;
    update(group, scale);
    for (size_t i = 0; i < group.parameters.size(); ++i) {
      if (group.has_gradient(i)) group.parameters[i].impl().storage->bump_version();
    }
  }
  if (ranks_.size() > 1) gather();
  // After all writes, since parameters may share memory.
  for (Group& group : groups_) {
    for (size_t i = 0; i < group.masters.size(); ++i) {
      const TensorImpl& p = group.parameters[i].impl();
      if (group.has_gradient(i)) group.versions[i] = p.storage->version();
    }
  }
  return raw_grad_norm_;
}

// Multiplies all gradients with a scalar.
void Optimizer::scale_gradients(const Tensor& factor) {
  const NoGradGuard no_grad;
  const auto scaled = [&](const Tensor& g) {
    const DType wide = is_half(g.dtype()) ? DType::float32 : g.dtype();
    return (g.to(wide) * factor.to(g.device()).to(wide)).to(g.dtype());
  };
  for (Group& group : groups_) {
    for (size_t i = 0; i < group.parameters.size(); ++i) {
      if (group.reduced[i].defined()) group.reduced[i] = scaled(group.reduced[i]);
      const Tensor g = group.parameters[i].grad();
      if (g.defined()) group.parameters[i].set_grad(scaled(g));
    }
  }
}

// Each rank has changed its parts of the parameters.
void Optimizer::gather() const {
  std::vector<Tensor> changed;
  for (const Group& group : groups_) {
    for (size_t i = 0; i < group.parameters.size(); ++i) {
      if (group.is_split(i) && group.has_gradient(i)) changed.push_back(group.parameters[i]);
    }
  }
  ranks_.all_gather_(changed);
}

}  // namespace sash::optim
