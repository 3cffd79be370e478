#pragma once

#include <concepts>
#include <functional>
#include <iosfwd>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "../core/error.h"
#include "../tensor/io/state_check.h"
#include "../tensor/io/state_dict.h"
#include "../tensor/random.h"
#include "../tensor/tensor.h"

namespace sash::nn {

class Module;

/// Runs after a module with its inputs and its output. A defined result replaces the output.
using ForwardHook = std::function<Tensor(const Module& module, std::span<const Tensor> inputs,
                                         const Tensor& output)>;
/// Runs before a module.
using ForwardPreHook = std::function<void(const Module& module, std::span<const Tensor> inputs)>;

/// Removes a hook. Destroying the handle does not remove the hook.
class SASH_API HookHandle {
 public:
  HookHandle() = default;
  /// Does nothing the second time, or after the module was destroyed.
  void remove();

 private:
  friend class Module;
  struct Hook {  // exactly one is set
    ForwardPreHook before;
    ForwardHook after;
  };
  using Hooks = std::vector<std::shared_ptr<Hook>>;
  HookHandle(const std::shared_ptr<Hooks>& hooks, const std::shared_ptr<Hook>& hook)
      : hooks_(hooks), hook_(hook) {}

  std::weak_ptr<Hooks> hooks_;
  std::weak_ptr<Hook> hook_;
};

// A module may have a forward of other arguments: see ModuleOf.
#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Woverloaded-virtual"
#endif

/// A part of a model: parameters, buffers and child modules, each with a name.
///
/// A parent owns its children, which are on the heap, and parameters are tensor handles. So members
/// that refer to them stay valid when the module is moved:
///
///     struct MLP : nn::Module {
///       nn::Linear& fc1 = register_module<nn::Linear>("fc1", 4, 16);
///       nn::Linear& fc2 = register_module<nn::Linear>("fc2", 16, 1);
///       Tensor forward(const Tensor& x) override { return fc2(relu(fc1(x))); }
///     };
///
/// `SASH_MODULE(nn::Linear, fc1, 4, 16);` is short for the first of these lines. A module whose
/// `forward` takes something else than one tensor derives from `ModuleOf`.
///
/// Names are not empty, have no dot, and are unique within a module; other names are a
/// `ValueError`. Full names join them with dots, as in PyTorch: "layers.0.norm1.weight". An error
/// thrown in a call of a child names the child: "in layers.0.norm1: layer_norm: ...".
class SASH_API Module {
 public:
  Module();
  virtual ~Module();
  Module(Module&&) noexcept;
  Module& operator=(Module&&) noexcept;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  /// The module's result. Throws `NotImplemented` with the type's name unless overridden.
  virtual Tensor forward(const Tensor& x);
  Tensor operator()(const Tensor& x);

  /// One line for printing, such as "Linear(4 -> 16, bias)"; the name of the type by default.
  virtual std::string describe() const;

  // ---- parts ----------------------------------------------------------------------------------

  /// Makes a child in place.
  template <class M, class... Args>
  M& register_module(std::string name, Args&&... args) {
    return adopt(std::move(name), std::make_unique<M>(std::forward<Args>(args)...));
  }
  /// The same with options in braces: `register_module<nn::Linear>("fc", 4, 16, {.bias = false})`.
  template <class M>
  M& register_module(std::string name, const typename M::Options& options) {
    return adopt(std::move(name), std::make_unique<M>(options));
  }
  template <class M, class A>
  M& register_module(std::string name, A&& a, const typename M::Options& options) {
    return adopt(std::move(name), std::make_unique<M>(std::forward<A>(a), options));
  }
  template <class M, class A, class B>
  M& register_module(std::string name, A&& a, B&& b, const typename M::Options& options) {
    return adopt(std::move(name),
                 std::make_unique<M>(std::forward<A>(a), std::forward<B>(b), options));
  }
  template <class M, class A, class B, class C>
  M& register_module(std::string name, A&& a, B&& b, C&& c, const typename M::Options& options) {
    return adopt(std::move(name), std::make_unique<M>(std::forward<A>(a), std::forward<B>(b),
                                                      std::forward<C>(c), options));
  }
  /// Adds a child made elsewhere.
  template <class M>
  M& register_module(std::string name, M&& child) {
    static_assert(!std::is_lvalue_reference_v<M>, "a module is moved into its parent");
    return adopt(std::move(name), std::make_unique<M>(std::move(child)));
  }
  /// Registers a leaf that is trained, and returns it. `AutogradError` for the result of a recorded
  /// op, `DTypeError` unless it is floating.
  Tensor register_parameter(std::string name, const Tensor& value);
  /// Registers a tensor that is moved with the module but not trained, and returns it. If it is
  /// persistent, state dictionaries include it. A table that the constructor computes need not be
  /// persistent.
  Tensor register_buffer(std::string name, const Tensor& value, bool persistent = true);

  /// Every parameter once, in the order of registration, a parent's before its children's. A
  /// parameter with two names (tied weights) appears under the first.
  std::vector<Tensor> parameters() const;
  StateDict named_parameters() const;
  StateDict named_buffers() const;
  /// This module, named "", and all modules below it.
  std::vector<std::pair<std::string, Module*>> named_modules();
  /// The modules directly below this one.
  std::vector<std::pair<std::string, Module*>> children() const;
  /// The number of elements of `parameters()`.
  int64_t num_parameters() const;

  /// Calls `f` on every module, children before their parent.
  Module& apply(const std::function<void(Module&)>& f);

  /// Runs `hook` after each call of this module that returns a tensor. Hooks run in the order of
  /// their registration. `ValueError` for an empty function.
  HookHandle register_forward_hook(ForwardHook hook);
  /// Runs `hook` before each call of this module that returns a tensor.
  HookHandle register_forward_pre_hook(ForwardPreHook hook);
  /// Whether there are hooks: then the parent must call this module, not a fused op.
  bool has_forward_hooks() const { return hooks_ && !hooks_->empty(); }

  // ---- modes ----------------------------------------------------------------------------------

  /// Switches this module and all modules below it between training and evaluation.
  Module& train(bool training = true);
  Module& eval() { return train(false); }
  bool is_training() const { return modes_.training; }
  /// Drops the gradient of every parameter.
  void zero_grad();

  /// Sets whether parameters are trained: all, or those whose whole names match `pattern`, an
  /// ECMAScript regular expression. `ValueError` if it is invalid or matches no parameter.
  Module& requires_grad_(bool value = true, const std::string& pattern = ".*");
  /// `requires_grad_(false)`, and drops the gradients. No gradient is computed for frozen
  /// parameters, and an optimizer makes no moments for parameters that never had a gradient.
  Module& freeze(const std::string& pattern = ".*");

  /// Moves (casts) parameters, floating buffers and gradients in place: other handles, of members
  /// or optimizers, see the new elements. Buffers of integers are moved but never cast.
  Module& to(Device device);
  Module& to(DType dtype);
  Module& to(Device device, DType dtype);
  Module& half() { return to(DType::float16); }
  Module& bfloat16() { return to(DType::bfloat16); }
  Module& float32() { return to(DType::float32); }
  Module& float64() { return to(DType::float64); }
  /// Switches FP8 products (`linear_float8`) on or off in the dense `Linear` layers of this module
  /// and of all modules below it, except those whose whole names match `except`, an ECMAScript
  /// regular expression: by default heads. The parameters keep their dtype. `ValueError` if the
  /// expression is invalid.
  Module& float8(bool on = true, const std::string& except = "(.*\\.)?head");
  bool is_float8() const { return modes_.float8; }

  /// Takes clones of the other's parameters and buffers, with their dtypes and devices, and its
  /// modes, for `deep_copy`. `ValueError` that lists names which only one module has, or tensors
  /// whose shapes differ; nothing is changed then.
  void copy_from(const Module& other);

  // ---- saving ---------------------------------------------------------------------------------

  /// Parameters and buffers by full name; detached, sharing memory with the module. Tied weights
  /// are listed under each name.
  StateDict state_dict() const;
  /// Copies the dictionary's tensors into the module's, casting and moving as needed. Everything is
  /// checked first: `ValueError` that lists tensors whose shape or kind of dtype differs and, if
  /// `strict`, missing and unexpected keys. If it throws, nothing is loaded.
  LoadReport load_state_dict(const StateDict& dict, bool strict = true);
  /// The checks of `load_state_dict`, without loading.
  LoadReport check_state_dict(const StateDict& dict, bool strict = true) const;
  /// Does every step of `load_state_dict` that can fail, and returns a function that loads into the
  /// module's present tensors.
  std::function<void()> prepare_load(const StateDict& dict, bool strict = true) const;

 protected:
  /// Returns what `f` returns; if that is a tensor, this module's hooks run. An `Error` that `f`
  /// throws gets this module's full name. Hooks see the tensors of `inputs`.
  template <class F, class... Inputs>
  std::invoke_result_t<F> call(F&& f, const Inputs&... inputs) const {
    return named_errors([&]() -> std::invoke_result_t<F> {
      if constexpr (std::is_same_v<std::invoke_result_t<F>, Tensor>) {
        if (has_forward_hooks()) {
          std::vector<Tensor> tensors;
          (add_tensor(tensors, inputs), ...);
          run_pre_hooks(tensors);
          return run_hooks(tensors, f());
        }
      }
      return f();
    });
  }
  /// Returns what `call` returns. An `Error` that it throws gets this module's full name.
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
  /// Replaces a parameter or buffer by another tensor, of any shape, and returns the tensor. Errors
  /// as `register_parameter`; `ValueError` if nothing has that name. An optimizer made before still
  /// has the old parameter.
  Tensor replace(std::string_view name, const Tensor& value);
  /// Checks of `check_state_dict` beyond shapes: throws if this module, whose tensors have keys
  /// that begin with `prefix`, cannot use the dictionary's tensors.
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
  StateDict collect(std::initializer_list<StateDict Module::*> parts) const;
  static void replace_elements(TensorImpl& target, const Tensor& source);
  void convert(const std::function<Tensor(const Tensor&)>& conversion);
  template <class T>
  static void add_tensor(std::vector<Tensor>& tensors, const T& input) {
    if constexpr (std::is_same_v<T, Tensor>) tensors.push_back(input);
  }
  HookHandle add_hook(HookHandle::Hook hook);
  void run_pre_hooks(const std::vector<Tensor>& inputs) const;
  Tensor run_hooks(const std::vector<Tensor>& inputs, Tensor output) const;

  StateDict parameters_;
  StateDict buffers_;
  StateDict transient_buffers_;  // not part of state dictionaries
  std::vector<std::pair<std::string, std::unique_ptr<Module>>> children_;
  const Module* parent_ = nullptr;
  std::shared_ptr<HookHandle::Hooks> hooks_;  // null before the first
  struct Modes {
    bool training = true, float8 = false;
  } modes_;
};

/// Base of a module whose `forward` takes any arguments and returns anything:
///
///     struct Attend : nn::ModuleOf<Attend> {
///       SASH_MODULE(nn::Linear, q, 16, 16);
///       Tensor forward(const Tensor& x, const Tensor& lengths) { ... }
///     };
///     Attend attend;
///     Tensor y = attend(x, lengths);
///
/// The call runs `forward`, with hooks and error texts as in `Module`; hooks see those arguments
/// that are tensors. An argument in braces has no type to deduce: name its type.
///
/// `ModuleOf<Derived, Base>` is the same for a module that derives from `Base`, another module.
template <class Derived, class Base = Module>
class ModuleOf : public Base {
 public:
  using Base::Base;
  template <class... Args>
  decltype(auto) operator()(Args&&... args) {
    auto& self = static_cast<Derived&>(*this);
    return this->call([&]() -> decltype(auto) { return self.forward(std::forward<Args>(args)...); },
                      args...);
  }

 protected:
  void forward() = delete;  // hides the one of Module, so that compilers do not warn of Derived's
};

#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

/// The module that `make` returns, with clones of the parameters and buffers of `module`, and its
/// modes, but not its hooks. Generators of devices stay unchanged.
template <class M, std::invocable Make>
M deep_copy(const M& module, Make&& make) {
  M copy = [&] {
    const sash::detail::PrivateDraws draws;
    return make();
  }();
  copy.copy_from(module);
  return copy;
}
/// The same for a module whose constructor takes no arguments.
template <std::default_initializable M>
M deep_copy(const M& module) {
  return deep_copy(module, [] { return M(); });
}

/// The module and all below it as a tree, each line with its number of parameters.
SASH_API std::string to_string(const Module& module);
SASH_API std::ostream& operator<<(std::ostream& out, const Module& module);

}  // namespace sash::nn

/// Declares the member `name`, a reference to a child module of that name:
/// `SASH_MODULE(nn::Linear, fc, 4, 16, {.bias = false});`.
#define SASH_MODULE(type, name, ...) \
  type& name = this->template register_module<type>(#name __VA_OPT__(, ) __VA_ARGS__)
