#include <string>

#include "../nn/state_check.h"
#include "../tensor/factories.h"
#include "../tensor/grad_mode.h"
#include "optimizer.h"

namespace sash::optim {
namespace {

std::string state_key(size_t parameter, const char* name) {
  return "state." + std::to_string(parameter) + "." + name;
}

std::string group_key(size_t group, const char* name) {
  return "param_groups." + std::to_string(group) + "." + name;
}

}  // namespace

StateDict Optimizer::state_dict() const {
  const NoGradGuard no_grad;
  StateDict dict;
  size_t number = 0;  // of the parameter, over all groups
  for (const Group& group : groups_) {
    for (size_t i = 0; i < group.parameters.size(); ++i, ++number) {
      if (!group.steps.defined()) continue;
      dict.emplace_back(state_key(number, "step"), group.steps.select(0, static_cast<int64_t>(i)));
      for (size_t k = 0; k < moment_names_.size(); ++k) {
        dict.emplace_back(state_key(number, moment_names_[k]), group.moments[k][i].detach());
      }
    }
  }
  for (size_t g = 0; g < groups_.size(); ++g) {
    for (const Hyperparameter& h : groups_[g].hyperparameters) {
      dict.emplace_back(group_key(g, h.name),
                        scalar_tensor(h.value, {.dtype = DType::float64, .device = kCPU}));
    }
  }
  return dict;
}

// A group is saved with its state once it has taken a step, and without before.
bool Optimizer::has_state(const nn::StateCheck& given, size_t first, const Group& group) const {
  for (size_t i = 0; i < group.parameters.size(); ++i) {
    if (given.find(state_key(first + i, "step"))) return true;
  }
  return false;
}

void Optimizer::check_state_dict(const StateDict& dict) const {
  nn::StateCheck check(std::string(name_) + ".load_state_dict", dict);
  size_t first = 0;
  for (size_t g = 0; g < groups_.size(); first += groups_[g].parameters.size(), ++g) {
    const Group& group = groups_[g];
    for (const Hyperparameter& h : group.hyperparameters) {
      check.expect(group_key(g, h.name), {}, true);
    }
    if (!has_state(check, first, group)) continue;
    for (size_t i = 0; i < group.parameters.size(); ++i) {
      check.expect(state_key(first + i, "step"), {}, false);
      for (const char* moment : moment_names_) {
        check.expect(state_key(first + i, moment), group.parameters[i].shape(), true);
      }
    }
  }
  check.finish(true);
}

void Optimizer::load_state_dict(const StateDict& dict) {
  check_state_dict(dict);
  const NoGradGuard no_grad;
  const nn::StateCheck given(std::string(name_) + ".load_state_dict", dict);
  size_t first = 0;
  for (size_t g = 0; g < groups_.size(); first += groups_[g].parameters.size(), ++g) {
    Group& group = groups_[g];
    for (Hyperparameter& h : group.hyperparameters) {
      h.value = given.find(group_key(g, h.name))->item<double>();
    }
    group.moments.clear();
    group.steps = group.lr = Tensor();
    if (!has_state(given, first, group)) continue;
    make_state(group);
    for (size_t i = 0; i < group.parameters.size(); ++i) {
      group.steps.select(0, static_cast<int64_t>(i))
          .copy_(*given.find(state_key(first + i, "step")));
      for (size_t k = 0; k < moment_names_.size(); ++k) {
        group.moments[k][i].copy_(*given.find(state_key(first + i, moment_names_[k])));
      }
    }
  }
}

}  // namespace sash::optim
