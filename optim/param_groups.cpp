#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "../core/error.h"
#include "../nn/module.h"
#include "../nn/name_pattern.h"
#include "../tensor/graph.h"
#include "optimizer.h"

namespace sash::optim {
namespace {

void check_rate(const std::string& op, const char* what, double value) {
  if (!(value >= 0) || std::isinf(value)) {
    throw ValueError(op, std::string("a finite ") + what + " of at least 0", to_text(value));
  }
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
  added.ranks = ranks_;
  added.reduced.resize(added.parameters.size());
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
  changed.hyperparameters[0].value = lr;  // "lr" is the first
}

std::vector<ParamGroup> param_groups(const nn::Module& model, std::vector<ParamGroup> groups) {
  std::vector<nn::NamePattern> patterns;
  for (const ParamGroup& group : groups) patterns.emplace_back("param_groups", group.pattern);
  ParamGroup rest;
  for (const auto& [name, parameter] : model.named_parameters()) {
    size_t taker = 0;
    while (taker < groups.size() && !patterns[taker].matches(name)) ++taker;
    (taker < groups.size() ? groups[taker] : rest).parameters.push_back(parameter);
  }
  for (const ParamGroup& group : groups) {
    if (!group.parameters.empty()) continue;
    throw ValueError("param_groups", "a pattern that matches a remaining parameter",
                     "'" + group.pattern + "'");
  }
  if (!rest.parameters.empty()) groups.push_back(std::move(rest));
  return groups;
}

}  // namespace sash::optim
