#include <algorithm>
#include <memory>
#include <string>

#include "../ops/elementwise/where.h"
#include "../tensor/autograd/grad_mode.h"
#include "../tensor/factories.h"
#include "../tensor/graph.h"
#include "../tensor/io/state_check.h"
#include "optimizer.h"

namespace sash::optim {
namespace {

constexpr const char* kInitialRate = "initial_lr";

std::string state_key(size_t parameter, const char* name) {
  return "state." + std::to_string(parameter) + "." + name;
}

std::string group_key(size_t group, const char* name) {
  return "param_groups." + std::to_string(group) + "." + name;
}

// The saved value of a hyperparameter; `otherwise` if there is none or it is not a number.
double saved_value(const StateCheck& given, const std::string& key, double otherwise) {
  const Tensor* const found = given.find(key);
  const bool number =
      found && found->defined() && found->rank() == 0 && is_floating(found->dtype());
  return number ? found->to(DType::float64).item<double>() : otherwise;
}

// The saved count of steps of a parameter; 0 if there is none or it is not a number.
int64_t saved_step(const StateCheck& given, size_t parameter) {
  const Tensor* const step = given.find(state_key(parameter, "step"));
  const bool number = step && step->defined() && step->rank() == 0 && !is_floating(step->dtype());
  return number ? step->to(DType::int64).item<int64_t>() : 0;
}

// Whether a parameter was saved after its first step: before it has a count of 0 and no moments.
bool has_moments(const StateCheck& given, size_t parameter, const std::vector<const char*>& names) {
  if (saved_step(given, parameter) > 0) return true;
  return std::any_of(names.begin(), names.end(), [&](const char* name) {
    return given.find(state_key(parameter, name)) != nullptr;
  });
}

}  // namespace

StateDict Optimizer::state_dict() const {
  check_here("state_dict");
  const NoGradGuard no_grad;
  StateDict dict;
  size_t number = 0;  // of the parameter, over all groups
  for (const Group& group : groups_) {
    const std::vector<const char*> moments = kind_.moments(group.hyperparameters);
    for (size_t i = 0; i < group.parameters.size(); ++i, ++number) {
      if (!group.steps.defined()) continue;
      dict.emplace_back(state_key(number, "step"), group.steps.select(0, static_cast<int64_t>(i)));
      for (size_t k = 0; k < moments.size(); ++k) {
        const Tensor& moment = group.moments[k][i];
        if (moment.defined())
          dict.emplace_back(state_key(number, moments[k]), group.whole(i, moment));
      }
      const Tensor& master = group.masters[i];
      if (master.defined()) dict.emplace_back(state_key(number, "master"), group.whole(i, master));
    }
  }
  for (size_t g = 0; g < groups_.size(); ++g) {
    const auto add = [&](const char* name, double value) {
      dict.emplace_back(group_key(g, name),
                        scalar_tensor(value, {.dtype = DType::float64, .device = kCPU}));
    };
    for (const Hyperparameter& h : groups_[g].hyperparameters) add(h.name, h.value);
    if (groups_[g].initial_lr) add(kInitialRate, *groups_[g].initial_lr);
  }
  return dict;
}

// A group is saved with its state once it has taken a step, and without before.
bool Optimizer::has_state(const StateCheck& given, size_t first, const Group& group) const {
  for (size_t i = 0; i < group.parameters.size(); ++i) {
    if (given.find(state_key(first + i, "step"))) return true;
  }
  return false;
}

void Optimizer::check_state_dict(const StateDict& dict) const {
  check_here("load_state_dict");
  const std::string op = std::string(kind_.name) + ".load_state_dict";
  StateCheck check(op, dict);
  std::vector<Hyperparameters> saved;
  size_t first = 0;
  for (size_t g = 0; g < groups_.size(); first += groups_[g].parameters.size(), ++g) {
    const Group& group = groups_[g];
    Hyperparameters& values = saved.emplace_back(group.hyperparameters);
    for (Hyperparameter& h : values) {
      check.expect(group_key(g, h.name), {}, true);
      h.value = saved_value(check, group_key(g, h.name), h.value);
    }
    if (const std::string key = group_key(g, kInitialRate); check.find(key)) {
      check.expect(key, {}, true);
      values.push_back({kInitialRate, saved_value(check, key, 0)});
    }
    if (!has_state(check, first, group)) continue;
    for (size_t i = 0; i < group.parameters.size(); ++i) {
      const std::string step = state_key(first + i, "step");
      check.expect(step, {}, false);
      if (const int64_t taken = saved_step(check, first + i); taken < 0) {
        throw ValueError(op, "a step count of at least 0",
                         std::to_string(taken) + " for '" + step + "'");
      }
      std::vector<const char*> kept = kind_.moments(values);
      if (wants_master(group.parameters[i])) kept.push_back("master");
      if (!has_moments(check, first + i, kept)) continue;
      for (const char* name : kept) {
        check.expect(state_key(first + i, name), group.parameters[i].shape(), true);
      }
    }
  }
  check.finish(true);
  for (size_t g = 0; g < groups_.size(); ++g) {
    check_values(op, saved[g]);
    if (!kind_.check_parameter) continue;
    for (const Tensor& p : groups_[g].parameters) kind_.check_parameter(op, saved[g], p);
  }
}

std::function<void()> Optimizer::prepare_load(const StateDict& dict) {
  check_state_dict(dict);
  const NoGradGuard no_grad;
  const StateCheck given(std::string(kind_.name) + ".load_state_dict", dict);
  const auto loaded = std::make_shared<std::vector<Group>>();
  size_t first = 0;
  for (size_t g = 0; g < groups_.size(); first += groups_[g].parameters.size(), ++g) {
    Group& group = loaded->emplace_back();
    group.parameters = groups_[g].parameters;
    group.ranks = ranks_;
    group.reduced.resize(group.parameters.size());
    group.hyperparameters = groups_[g].hyperparameters;
    for (Hyperparameter& h : group.hyperparameters) {
      h.value = saved_value(given, group_key(g, h.name), h.value);
    }
    const std::string initial = group_key(g, kInitialRate);
    if (given.find(initial)) group.initial_lr = saved_value(given, initial, 0);
    if (!has_state(given, first, group)) continue;
    make_state(group);
    const std::vector<const char*> moments = kind_.moments(group.hyperparameters);
    for (size_t i = 0; i < group.parameters.size(); ++i) {
      group.steps.select(0, static_cast<int64_t>(i))
          .copy_(*given.find(state_key(first + i, "step")));
      const Tensor& p = group.parameters[i];
      const auto read = [&](const char* name, Tensor& into) {
        const Tensor* const saved = given.find(state_key(first + i, name));
        if (!saved) return;
        into = empty(p.shape(), state_options(p)).copy_(*saved);
        if (group.is_split(i)) into = group.part(i, into).clone();
      };
      for (size_t k = 0; k < moments.size(); ++k) read(moments[k], group.moments[k][i]);
      if (wants_master(p)) read("master", group.masters[i]);
    }
  }
  return [this, loaded] {
    groups_ = std::move(*loaded);
    ++loads_;
    detail::outdate_graphs();
  };
}

void Optimizer::reset_moments(const Tensor& parameter, const std::vector<int64_t>& rows) {
  check_here("reset_moments");
  const std::string op = std::string(kind_.name) + ".reset_moments";
  const NoGradGuard no_grad;
  for (Group& group : groups_) {
    for (size_t i = 0; i < group.parameters.size(); ++i) {
      if (!group.parameters[i].is_same(parameter)) continue;
      if (rows.empty()) return;
      Shape shape = parameter.shape();
      const int64_t count = shape.rank() > 0 ? shape[0] : 0;
      std::vector<uint8_t> marks(static_cast<size_t>(count));
      for (const int64_t row : rows) {
        if (row < 0 || row >= count) {
          throw IndexError(op, "a row below " + std::to_string(count), std::to_string(row));
        }
        marks[static_cast<size_t>(row)] = 1;
      }
      for (int axis = 1; axis < shape.rank(); ++axis) shape[axis] = 1;
      for (std::vector<Tensor>& moments : group.moments) {
        if (!moments[i].defined()) continue;
        const Tensor mask = from_host(marks.data(), shape, DType::uint8,
                                      {.dtype = DType::boolean, .device = moments[i].device()});
        const Tensor all = group.part(i, mask.expand(parameter.shape()).contiguous());
        moments[i].copy_(masked_fill(moments[i], all, 0));
      }
      return;
    }
  }
  throw ValueError(op, "a parameter of this optimizer", "another tensor");
}

void Optimizer::load_state_dict(const StateDict& dict) { prepare_load(dict)(); }

}  // namespace sash::optim
