#pragma once

#include <functional>
#include <iosfwd>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "../core/error.h"
#include "../tensor/io/state_check.h"
#include "../tensor/io/state_dict.h"
#include "../tensor/tensor.h"

namespace sash::nn {

/// A part of a model: parameters, buffers and child modules, each under a name.
///
/// Children live on the heap and are owned by their parent, parameters are tensor handles, so
/// members refer to them and stay valid when the module is moved:
///
///     struct MLP : nn::Module {
///       nn::Linear& fc1 = register_module<nn::Linear>("fc1", 4, 16);
///       nn::Linear& fc2 = register_module<nn::Linear>("fc2", 16, 1);
///       Tensor forward(const Tensor& x) override { return fc2(relu(fc1(x))); }
///     };
///
/// Names are never empty, hold no dot, and are unique within a module: anything else is a
/// `ValueError`. Full names join them with dots, "layers.0.norm1.weight", as PyTorch's do. An error
/// that leaves a call of a child says its full name: "in layers.0.norm1: layer_norm: ...".
class SASH_API Module {
 public:
  Module();
  virtual ~Module();
  Module(Module&&) noexcept;
  Module& operator=(Module&&) noexcept;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  /// What the module computes. `NotImplemented` naming the type unless a derived class has one.
  virtual Tensor forward(const Tensor& x);
  Tensor operator()(const Tensor& x) {
    return named_errors([&] { return forward(x); });
  }

  /// One line for printing, such as "Linear(4 -> 16, bias)"; the name of the type by default.
  virtual std::string describe() const;

  // ---- parts ----------------------------------------------------------------------------------

  /// Makes a child in place.
  template <class M, class... Args>
  M& register_module(std::string name, Args&&... args) {
    return adopt(std::move(name), std::make_unique<M>(std::forward<Args>(args)...));
  }
  /// Adds a child made elsewhere.
  template <class M>
  M& register_module(std::string name, M&& child) {
    static_assert(!std::is_lvalue_reference_v<M>, "a module is moved into its parent");
    return adopt(std::move(name), std::make_unique<M>(std::move(child)));
  }
  /// Marks a leaf as trained, and returns it. `AutogradError` on a tensor that an op made,
  /// `DTypeError` unless it is floating.
  Tensor register_parameter(std::string name, const Tensor& value);
  /// Adds a tensor that is saved with the module but not trained, and returns it.
  Tensor register_buffer(std::string name, const Tensor& value);

  /// Every parameter once, in the order of registration, a parent's before its children's. One that
  /// has two names (tied weights) appears under the first.
  std::vector<Tensor> parameters() const;
  StateDict named_parameters() const;
  StateDict named_buffers() const;
  /// This module, named "", and all below it.
  std::vector<std::pair<std::string, Module*>> named_modules();
  /// The modules directly below this one.
  std::vector<std::pair<std::string, Module*>> children() const;
  /// Elements of `parameters()`.
  int64_t num_parameters() const;

  /// Calls `f` on every module, children before their parent.
  Module& apply(const std::function<void(Module&)>& f);

  // ---- modes ----------------------------------------------------------------------------------

  /// Switches this module and all below it, dropout for one, between training and evaluation.
  Module& train(bool training = true);
  Module& eval() { return train(false); }
  bool is_training() const { return training_; }
  /// Drops the gradient of every parameter.
  void zero_grad();

  /// Moves (casts) parameters, floating buffers and gradients in place: handles held elsewhere, by
  /// members or optimizers, see the new elements. Buffers of integers are moved but never cast.
  Module& to(Device device);
  Module& to(DType dtype);

  // ---- saving ---------------------------------------------------------------------------------

  /// Parameters and buffers by full name; detached, sharing memory with the module. Tied weights
  /// are listed under each name.
  StateDict state_dict() const;
  /// Copies the dictionary's tensors into the module's, casting and moving as needed. Everything is
  /// checked first: `ValueError` listing tensors whose shape or kind of dtype differs and, if
  /// `strict`, missing and unexpected keys. If it throws, nothing is loaded.
  LoadReport load_state_dict(const StateDict& dict, bool strict = true);
  /// The checks of `load_state_dict`, without loading.
  LoadReport check_state_dict(const StateDict& dict, bool strict = true) const;
  /// Does all of `load_state_dict` that can fail, and returns a function that loads into the
  /// tensors which the module has now.
  std::function<void()> prepare_load(const StateDict& dict, bool strict = true) const;

 protected:
  /// What `call` returns; an `Error` that leaves it gets this module's full name. For call
  /// operators of other arguments: `return named_errors([&] { return forward(x, mask); });`.
  template <class Call>
  std::invoke_result_t<Call> named_errors(Call&& call) const {
    try {
      return call();
    } catch (Error& error) {
      error.set_module(full_name());
      throw;
    }
  }
  /// The name of the most derived type, without namespaces: "CausalLM".
  std::string type_name() const;
  /// Puts another tensor, of any shape, in the place of a parameter or buffer, and returns it. The
  /// errors of `register_parameter`; `ValueError` if nothing has that name. Optimizers that know
  /// the former parameter do not learn of it.
  Tensor replace(std::string_view name, const Tensor& value);
  /// What `check_state_dict` has to know beyond shapes: throws if this module, whose tensors have
  /// keys that begin with `prefix`, cannot use what the dictionary has.
  virtual void check_load(const StateCheck& given, const std::string& prefix) const;

 private:
  using Visitor = std::function<void(const std::string& prefix, const Module& module)>;

  template <class M>
  M& adopt(std::string name, std::unique_ptr<M> child) {
    static_assert(std::is_base_of_v<Module, M>, "children are modules");
    M& module = *child;
    add_child(std::move(name), std::move(child));
    return module;
  }
  // "" for a module without a parent.
  std::string full_name() const;
  void claim_children();
  void add_child(std::string name, std::unique_ptr<Module> child);
  void check_name(const char* op, std::string_view name) const;
  void check_parameter(const char* op, std::string_view name, const Tensor& value) const;
  void visit(const std::string& prefix, const Visitor& visitor) const;
  StateDict collect(StateDict Module::*part, bool once) const;
  void convert(const std::function<Tensor(const Tensor&)>& conversion);

  StateDict parameters_;
  StateDict buffers_;
  std::vector<std::pair<std::string, std::unique_ptr<Module>>> children_;
  const Module* parent_ = nullptr;
  bool training_ = true;
};

/// The module and all below it as a tree, each line with its number of parameters.
SASH_API std::string to_string(const Module& module);
SASH_API std::ostream& operator<<(std::ostream& out, const Module& module);

}  // namespace sash::nn
