#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "../tensor/io/state_dict.h"
#include "../tensor/tensor.h"

namespace sash {
class StateCheck;
namespace kernels {
struct GradientScale;
}
}  // namespace sash

namespace sash::optim {

/// Parameters with the same options, on one device. An option that is set here overrides the
/// optimizer's option of the same name; `ValueError` if the optimizer does not have it.
struct ParamGroup {
  std::vector<Tensor> parameters{};
  std::string pattern{};  ///< of parameters' names, for `param_groups`
  std::optional<double> lr{};
  std::optional<double> weight_decay{};
  std::optional<double> momentum{};
  std::optional<double> beta1{};
  std::optional<double> beta2{};
  std::optional<double> eps{};
  std::optional<int64_t> ns_steps{};  ///< of `Muon`; 0 trains the group by AdamW
};

/// The common part of all optimizers: groups of parameters, their hyperparameters, the state of
/// each parameter, and saving.
///
/// Learning rate and step counts are on the parameters' device, so a step never waits for the host.
/// The moments of a parameter are made by the first step in which it has a gradient; frozen
/// parameters have none. If parameters are moved or cast later (`Module::to`), their state is too.
///
/// Every optimizer has two more options, which are not part of its state:
///
/// - `master_weights`: for each float16 and bfloat16 parameter, keep a float32 copy, its master,
///   and float32 moments. Steps are made on the master; the parameter is the rounded
///   master. If someone changed the parameter, the master copies the changed elements in
///   the next step.
/// - `max_grad_norm`, if above 0: scale all gradients by min(max_grad_norm / (norm + 1e-6), 1),
///   where norm is the Euclidean norm of all of them together, as `clip_grad_norm_` does, but
///   while the step reads them, without another pass. `grad()` stays unchanged.
///
/// All members but `kind` of an optimizer that was moved from throw `ValueError`.
class SASH_API Optimizer {
 public:
  virtual ~Optimizer();
  Optimizer(Optimizer&&) noexcept;
  Optimizer& operator=(Optimizer&&) noexcept;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// The name of the optimizer, such as "AdamW".
  const char* kind() const { return kind_.name; }

  /// Updates every parameter that has a gradient. `DeviceError` if the parameters of a group, or
  /// with `max_grad_norm`, `set_skip_nonfinite` or a `GradScaler` any two that have a gradient, are
  /// on different devices; nothing is written then.
  void step();
  /// The norm of all gradients in the last step, before clipping: float64 [], on their device.
  /// Undefined (`item` throws) before the first step, and without `max_grad_norm` or `GradScaler`.
  const Tensor& grad_norm() const {
    check_here("grad_norm");
    return grad_norm_;
  }
  /// The option `max_grad_norm`. Infinity does not clip, but measures `grad_norm`.
  double max_grad_norm() const {
    check_here("max_grad_norm");
    return step_options_.max_grad_norm;
  }
  /// `ValueError` for a negative norm, or NaN.
  void set_max_grad_norm(double max_norm);
  /// Whether a step with a NaN or an infinity in its gradients changes nothing and is not counted,
  /// as in `GradScaler::step`; false by default. `grad_norm` shows whether a step was skipped.
  void set_skip_nonfinite(bool skip) {
    check_here("set_skip_nonfinite");
    step_options_.skip_nonfinite = skip;
  }
  bool skip_nonfinite() const {
    check_here("skip_nonfinite");
    return step_options_.skip_nonfinite;
  }
  /// Drops the gradient of every parameter.
  void zero_grad();

  /// Adds a group of parameters. `ValueError` for no parameters, a parameter that the optimizer
  /// already has, or one that is not a contiguous leaf; `DeviceError` for two devices. Nothing is
  /// added then.
  void add_param_group(ParamGroup group);
  size_t num_groups() const {
    check_here("num_groups");
    return groups_.size();
  }
  /// Every parameter, group after group.
  std::vector<Tensor> parameters() const;

  /// Learning rate of a group; `IndexError` if there is none of that number.
  double lr(size_t group = 0) const;
  /// Sets the rate of every group, or of one. `ValueError` unless it is finite and at least 0.
  void set_lr(double lr);
  void set_lr(double lr, size_t group);

  /// Sets the moments of some rows of a parameter, its indices `rows` along the first axis, to
  /// zero. Does nothing before the first step. `ValueError` if the optimizer does not have the
  /// parameter, `IndexError` for a row outside it.
  void reset_moments(const Tensor& parameter, const std::vector<int64_t>& rows);

  /// The state of a resumed run, detached, sharing memory with the optimizer.
  ///
  /// Of parameter i, counted over all groups, it has `state.<i>.step`, the moments, such as
  /// `state.<i>.exp_avg`, and `state.<i>.master` if it has one; of group g its hyperparameters,
  /// such as `param_groups.<g>.lr`, as float64 scalars, and `initial_lr` if a `LambdaLR` set the
  /// rate.
  StateDict state_dict() const;
  /// Loads a saved state, hyperparameters included, as PyTorch does: an SGD made without momentum
  /// continues with the saved momentum. Parameters are identified by their order alone: pass them
  /// in the order of the saved optimizer. Everything is checked first: `ValueError` that lists
  /// missing and unexpected keys and shapes that differ, or names a hyperparameter that the
  /// constructor would refuse, or a negative step count. If it throws, nothing is loaded.
  void load_state_dict(const StateDict& dict);
  /// The checks of `load_state_dict`, without loading.
  void check_state_dict(const StateDict& dict) const;
  /// Does every step of `load_state_dict` that can fail, and returns a function that loads. Call it
  /// once, before the optimizer is moved.
  std::function<void()> prepare_load(const StateDict& dict);

 protected:
  struct Hyperparameter {
    const char* name;
    double value;
  };
  using Hyperparameters = std::vector<Hyperparameter>;
  static double value_of(const Hyperparameters& hyperparameters, const char* name);
  /// `ValueError` of `op` unless "beta1" and "beta2" are in [0, 1).
  static void check_betas(const std::string& op, const Hyperparameters& values);

  struct StepOptions {
    bool master_weights = false;
    double max_grad_norm = 0;
    bool skip_nonfinite = false;
  };

  /// What differs between optimizers.
  struct Kind {
    const char* name;
    /// `ValueError` of `op` for invalid values, other than negative values and values that are not
    /// finite.
    void (*check)(const std::string& op, const Hyperparameters& values);
    /// The names of the state tensors of each parameter.
    std::vector<const char*> (*moments)(const Hyperparameters& values);
    /// `ValueError` of `op` for a parameter that a group of these values cannot train; null: no
    /// check.
    void (*check_parameter)(const std::string& op, const Hyperparameters& values,
                            const Tensor& parameter) = nullptr;
  };

  /// A group at work. `moments[k][i]` is the k-th moment of parameter i, undefined before its first
  /// step; `steps[i]` counts its steps. A master is undefined where there is none; `versions[i]` is
  /// that of parameter i when its master last agreed with it, or -1.
  struct Group {
    std::vector<Tensor> parameters;
    Hyperparameters hyperparameters;
    std::vector<std::vector<Tensor>> moments;
    std::vector<Tensor> masters;
    std::vector<int64_t> versions;
    Tensor steps;  ///< [parameters] int64, on their device; undefined before the first step
    Tensor lr;     ///< float64 scalar, on their device; undefined before the first step
    std::optional<double> initial_lr{};  ///< what a `LambdaLR` made the rate from

    double value(const char* name) const { return value_of(hyperparameters, name); }
    int64_t* step_of(size_t parameter) const;
    float* master_of(size_t parameter) const;
  };

  /// `defaults` begin with "lr". `ValueError` for no parameters, one given twice, or one that is
  /// not a contiguous leaf; `DeviceError` for a group on two devices.
  Optimizer(const Kind& kind, std::vector<ParamGroup> groups, Hyperparameters defaults,
            const StepOptions& step_options);

  /// One step of a group: parameters without a gradient are to be skipped, gradients are
  /// contiguous and multiplied with `scale` first.
  virtual void update(Group& group, const kernels::GradientScale& scale) = 0;

 private:
  /// An optimizer has a group unless it was moved from.
  void check_here(const char* method) const {
    if (groups_.empty()) refuse_moved(method);
  }
  [[noreturn]] void refuse_moved(const char* method) const;
  void add_group(const ParamGroup& group);
  Hyperparameters values_of(const ParamGroup& group) const;
  void check_values(const std::string& op, const Hyperparameters& values) const;
  void check_parameter(const Tensor& parameter) const;
  static void check_group_device(const std::string& op, const std::vector<Tensor>& group);
  void check_devices(bool one_norm) const;
  friend class GradScaler;
  friend class LambdaLR;
  /// A step on gradients of a loss that was multiplied with `loss_scale`, if that is defined.
  /// Returns their norm, which is undefined unless an option needs it.
  Tensor scaled_step(const Tensor& loss_scale);
  kernels::GradientScale gradient_scale(const Tensor& loss_scale);
  void prepare(Group& group);
  void make_state(Group& group) const;
  bool wants_master(const Tensor& parameter) const;
  TensorOptions state_options(const Tensor& parameter) const;
  void prepare_master(Group& group, size_t parameter) const;
  static void refresh_master(Group& group, size_t parameter);
  static void follow_replays(Group& group);
  bool has_state(const StateCheck& given, size_t first, const Group& group) const;

  Kind kind_;
  Hyperparameters defaults_;
  StepOptions step_options_;
  std::vector<Group> groups_;
  int64_t loads_ = 0;                 // of states, for `LambdaLR`
  Tensor raw_grad_norm_, grad_norm_;  // with and without the loss scale
  Tensor one_;                        // the loss scale of steps without a GradScaler
};

}  // namespace sash::optim
