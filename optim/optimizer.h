#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "../tensor/io/state_dict.h"
#include "../tensor/tensor.h"

namespace sash {
class StateCheck;
}

namespace sash::optim {

/// Parameters that are trained alike. What is set here overrides the optimizer's option of that
/// name; `ValueError` if it has none.
struct ParamGroup {
  std::vector<Tensor> parameters{};
  std::string pattern{};  ///< of parameters' names, for `param_groups`
  std::optional<double> lr{};
  std::optional<double> weight_decay{};
  std::optional<double> momentum{};
  std::optional<double> beta1{};
  std::optional<double> beta2{};
  std::optional<double> eps{};
};

/// What all optimizers share: groups of parameters, their hyperparameters, the state kept for each
/// parameter, and saving.
///
/// The learning rate and the step counts live on the parameters' device, so that a step never waits
/// for the host. The moments of a parameter are made by the first step in which it has a gradient:
/// frozen ones have none. If parameters are moved or cast later (`Module::to`), so is their state.
class SASH_API Optimizer {
 public:
  virtual ~Optimizer();
  Optimizer(Optimizer&&) noexcept;
  Optimizer& operator=(Optimizer&&) noexcept;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// Updates every parameter that has a gradient. `DeviceError` if the parameters of a group are
  /// on different devices; nothing is updated then.
  void step();
  /// Drops the gradient of every parameter.
  void zero_grad();

  /// Adds parameters, such as those that are trained from now on. `ValueError` for none, one that
  /// is known, or one that is not a contiguous leaf; nothing is added then.
  void add_param_group(ParamGroup group);
  size_t num_groups() const { return groups_.size(); }
  /// Every parameter, group after group.
  std::vector<Tensor> parameters() const;

  /// Learning rate of a group; `IndexError` if there is none of that number.
  double lr(size_t group = 0) const;
  /// Sets it for every group, or for one. `ValueError` unless it is finite and at least 0.
  void set_lr(double lr);
  void set_lr(double lr, size_t group);

  /// Sets the moments of some rows of a parameter to zero, as at the start: its indices `rows`
  /// along the first axis. Nothing to do before the first step. `ValueError` if the parameter is
  /// not this optimizer's, `IndexError` for a row that it does not have.
  void reset_moments(const Tensor& parameter, const std::vector<int64_t>& rows);

  /// What a resumed run needs, detached, sharing memory with the optimizer: of parameter i, counted
  /// over all groups, `state.<i>.step` and the moments, such as `state.<i>.exp_avg`; of group g its
  /// hyperparameters, such as `param_groups.<g>.lr`, as float64 scalars.
  StateDict state_dict() const;
  /// Loads a saved state, hyperparameters included, as PyTorch does: an SGD made without momentum
  /// continues with the saved momentum. Everything is checked first: `ValueError` listing missing
  /// and unexpected keys and shapes that differ, or naming a hyperparameter that the constructor
  /// would refuse. If it throws, nothing is loaded.
  void load_state_dict(const StateDict& dict);
  /// The checks of `load_state_dict`, without loading.
  void check_state_dict(const StateDict& dict) const;
  /// Does all of `load_state_dict` that can fail, and returns a function that loads. Call it once,
  /// before the optimizer is moved.
  std::function<void()> prepare_load(const StateDict& dict);

 protected:
  struct Hyperparameter {
    const char* name;
    double value;
  };
  using Hyperparameters = std::vector<Hyperparameter>;
  static double value_of(const Hyperparameters& hyperparameters, const char* name);

  /// What differs between optimizers.
  struct Kind {
    const char* name;
    /// `ValueError` of `op` for values that it cannot train with, beyond those that are negative or
    /// not finite.
    void (*check)(const std::string& op, const Hyperparameters& values);
    /// The names of the tensors kept for each parameter.
    std::vector<const char*> (*moments)(const Hyperparameters& values);
  };

  /// A group at work. `moments[k][i]` is the k-th moment of parameter i, undefined before its first
  /// step; `steps[i]` counts its steps.
  struct Group {
    std::vector<Tensor> parameters;
    Hyperparameters hyperparameters;
    std::vector<std::vector<Tensor>> moments;
    Tensor steps;  ///< [parameters] int64, on their device; undefined before the first step
    Tensor lr;     ///< float64 scalar, on their device; undefined before the first step

    double value(const char* name) const { return value_of(hyperparameters, name); }
    int64_t* step_of(size_t parameter) const;
  };

  /// `defaults` begin with "lr". `ValueError` for no parameters, one given twice, or one that is
  /// not a contiguous leaf.
  Optimizer(const Kind& kind, std::vector<ParamGroup> groups, Hyperparameters defaults);

  /// One step of a group: parameters without a gradient are to be skipped, gradients are
  /// contiguous.
  virtual void update(Group& group) = 0;

 private:
  void add_group(const ParamGroup& group);
  Hyperparameters values_of(const ParamGroup& group) const;
  void check_values(const std::string& op, const Hyperparameters& values) const;
  void check_parameter(const Tensor& parameter) const;
  void prepare(Group& group);
  void make_state(Group& group) const;
  bool has_state(const StateCheck& given, size_t first, const Group& group) const;

  Kind kind_;
  Hyperparameters defaults_;
  std::vector<Group> groups_;
};

}  // namespace sash::optim
