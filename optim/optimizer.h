#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "../ops/kernels/update.h"
#include "../tensor/io/state_dict.h"
#include "../tensor/tensor.h"

namespace sash {
class StateCheck;
}

namespace sash::optim {

/// Parameters that are trained alike, on one device. What is set here overrides the optimizer's
/// option of that name; `ValueError` if it has none.
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

/// What all optimizers share: groups of parameters, their hyperparameters, the state kept for each
/// parameter, and saving.
///
/// The learning rate and the step counts live on the parameters' device, so that a step never waits
/// for the host. The moments of a parameter are made by the first step in which it has a gradient:
/// frozen ones have none. If parameters are moved or cast later (`Module::to`), so is their state.
///
/// Two options of every optimizer say how it steps; they are not part of its state:
///
/// - `master_weights`: for each float16 and bfloat16 parameter, keep a float32 copy, its master,
///   and float32 moments. Steps are made on the master; the parameter is the master rounded. If
///   someone else writes to the parameter, the next step first takes over the elements that the
///   master no longer rounds to.
/// - `max_grad_norm`, if above 0: scale all gradients by min(max_grad_norm / (norm + 1e-6), 1),
///   where norm is the Euclidean norm of all of them together, as `clip_grad_norm_` does, but
///   while the step reads them, without a pass of its own. `grad()` stays as it is.
///
/// All members but `kind` of an optimizer that was moved from throw `ValueError`.
class SASH_API Optimizer {
 public:
  virtual ~Optimizer();
  Optimizer(Optimizer&&) noexcept;
  Optimizer& operator=(Optimizer&&) noexcept;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// The name of its kind, such as "AdamW".
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
  /// The option `max_grad_norm`. Infinity leaves gradients as they are, but measures `grad_norm`.
  double max_grad_norm() const {
    check_here("max_grad_norm");
    return step_options_.max_grad_norm;
  }
  /// `ValueError` for a negative norm, or NaN.
  void set_max_grad_norm(double max_norm);
  /// Whether a step with a NaN or an infinity in its gradients changes nothing and is not counted,
  /// as in `GradScaler::step`; by default no. `grad_norm` then says that it was so.
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

  /// Adds parameters, such as those that are trained from now on. `ValueError` for none, one that
  /// is known, or one that is not a contiguous leaf, `DeviceError` for two devices; nothing is
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
  /// Sets it for every group, or for one. `ValueError` unless it is finite and at least 0.
  void set_lr(double lr);
  void set_lr(double lr, size_t group);

  /// Sets the moments of some rows of a parameter to zero, as at the start: its indices `rows`
  /// along the first axis. Nothing to do before the first step. `ValueError` if the parameter is
  /// not this optimizer's, `IndexError` for a row that it does not have.
  void reset_moments(const Tensor& parameter, const std::vector<int64_t>& rows);

  /// What a resumed run needs, detached, sharing memory with the optimizer.
  ///
  /// Of parameter i, counted over all groups, it has `state.<i>.step`, the moments, such as
  /// `state.<i>.exp_avg`, and `state.<i>.master` if it has one; of group g its hyperparameters,
  /// such as `param_groups.<g>.lr`, as float64 scalars, and `initial_lr` if a `LambdaLR` set the
  /// rate.
  StateDict state_dict() const;
  /// Loads a saved state, hyperparameters included, as PyTorch does: an SGD made without momentum
  /// continues with the saved momentum. Parameters are known by their place alone: give them in the
  /// order of the optimizer that was saved. Everything is checked first: `ValueError` listing
  /// missing and unexpected keys and shapes that differ, or naming a hyperparameter that the
  /// constructor would refuse, or a negative step count. If it throws, nothing is loaded.
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
    /// `ValueError` of `op` for values that it cannot train with, beyond those that are negative or
    /// not finite.
    void (*check)(const std::string& op, const Hyperparameters& values);
    /// The names of the tensors kept for each parameter.
    std::vector<const char*> (*moments)(const Hyperparameters& values);
    /// `ValueError` of `op` for a parameter that it cannot train in a group of these values; null:
    /// any will do.
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
  /// A step on gradients of a loss that was multiplied with `loss_scale`, or not if it is
  /// undefined. Returns their norm, undefined if nobody asked for it.
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
