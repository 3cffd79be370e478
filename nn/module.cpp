#include "module.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <typeinfo>
#include <unordered_set>

#include "../core/error.h"
#include "../tensor/autograd/grad_mode.h"
#include "../tensor/tensor_impl.h"
#include "name_pattern.h"

namespace sash::nn {
namespace {

bool has_key(const StateDict& dict, std::string_view name) { return find(dict, name) != nullptr; }

std::string joined(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : prefix + "." + name;
}

void refuse_moved(const Module&, std::span<const Tensor>) {
  throw ValueError("Module", "a module", "one that was moved from");
}

}  // namespace

// Gives `target` the elements of `source`, so that every handle to it sees them.
void Module::replace_elements(TensorImpl& target, const Tensor& source) {
  const TensorImpl& from = source.impl();
  if (from.storage != target.storage) from.storage->follow(*target.storage);
  target.storage = from.storage;
  target.strides = from.strides;
  target.offset = from.offset;
  target.dtype = from.dtype;
}

Module::Module() = default;
Module::~Module() = default;

Module::Module(Module&& other) noexcept
    : parameters_(std::move(other.parameters_)),
      buffers_(std::move(other.buffers_)),
      transient_buffers_(std::move(other.transient_buffers_)),
      children_(std::move(other.children_)),
      hooks_(std::move(other.hooks_)),
      modes_(other.modes_) {
  claim_children();
  // Without its parameters a layer may well be another function: a call of it is an error.
  static const auto refusing = std::make_shared<HookHandle::Hooks>(
      1, std::make_shared<HookHandle::Hook>(HookHandle::Hook{refuse_moved, {}}));
  other.hooks_ = refusing;
}

// What is assigned to stays where it is, under its own name. `other` may be one of the children,
// which all go.
Module& Module::operator=(Module&& other) noexcept {
  Module taken(std::move(other));
  parameters_ = std::move(taken.parameters_);
  buffers_ = std::move(taken.buffers_);
  transient_buffers_ = std::move(taken.transient_buffers_);
  hooks_ = std::move(taken.hooks_);
  children_ = std::move(taken.children_);
  modes_ = taken.modes_;
  claim_children();
  return *this;
}

void Module::claim_children() {
  for (auto& [name, child] : children_) child->parent_ = this;
}

std::string Module::full_name() const {
  if (!parent_) return "";
  const auto self = std::find_if(parent_->children_.begin(), parent_->children_.end(),
                                 [this](const auto& child) { return child.second.get() == this; });
  return joined(parent_->full_name(), self->first);
}

Tensor Module::forward(const Tensor&) {
  throw NotImplemented(type_name(), "it has no forward(const Tensor&)");
}

Tensor Module::operator()(const Tensor& x) {
  return call([&] { return forward(x); }, x);
}

std::string Module::describe() const { return type_name(); }

std::string Module::type_name() const {
  int status = 0;
  char* demangled = abi::__cxa_demangle(typeid(*this).name(), nullptr, nullptr, &status);
  std::string text = demangled ? demangled : typeid(*this).name();
  std::free(demangled);
  if (const size_t arguments = text.find('<'); arguments != std::string::npos) {
    text.resize(arguments);
  }
  const size_t colon = text.rfind("::");
  return colon == std::string::npos ? text : text.substr(colon + 2);
}

// ---- parts --------------------------------------------------------------------------------------

void Module::check_name(const char* op, std::string_view name) const {
  const std::string where = type_name() + "." + op;
  if (name.empty()) throw ValueError(where, "a name", "an empty one");
  const std::string quoted = "'" + std::string(name) + "'";
  if (name.find('.') != std::string_view::npos) {
    throw ValueError(where, "a name without dots", quoted);
  }
  const bool is_child = std::any_of(children_.begin(), children_.end(),
                                    [&](const auto& child) { return child.first == name; });
  if (is_child || has_key(parameters_, name) || has_key(buffers_, name) ||
      has_key(transient_buffers_, name)) {
    throw ValueError(where, "a new name", quoted + ", which is taken");
  }
}

void Module::add_child(std::string name, std::unique_ptr<Module> child) {
  check_name("register_module", name);
  child->parent_ = this;
  children_.emplace_back(std::move(name), std::move(child));
}

void Module::check_parameter(const char* op, std::string_view name, const Tensor& value) const {
  const std::string where = type_name() + "." + op, quoted = "'" + std::string(name) + "'";
  if (!value.defined()) throw ValueError(where, "a tensor for " + quoted, "an undefined one");
  if (!value.is_leaf()) {
    throw AutogradError(where, "a leaf for " + quoted, "the output of a recorded op");
  }
  if (!is_floating(value.dtype())) {
    throw DTypeError(where, "a floating dtype for " + quoted, sash::name(value.dtype()));
  }
}

Tensor Module::register_parameter(std::string name, const Tensor& value) {
  check_name("register_parameter", name);
  check_parameter("register_parameter", name, value);
  Tensor parameter = value;
  parameter.requires_grad_();
  parameters_.emplace_back(std::move(name), parameter);
  return parameter;
}

Tensor Module::register_buffer(std::string name, const Tensor& value, bool persistent) {
  check_name("register_buffer", name);
  if (!value.defined()) {
    throw ValueError(type_name() + ".register_buffer", "a tensor for '" + name + "'",
                     "an undefined one");
  }
  (persistent ? buffers_ : transient_buffers_).emplace_back(std::move(name), value);
  return value;
}

Tensor Module::replace(std::string_view name, const Tensor& value) {
  const auto named = [name](const auto& entry) { return entry.first == name; };
  for (StateDict* const buffers : {&buffers_, &transient_buffers_}) {
    const auto buffer = std::find_if(buffers->begin(), buffers->end(), named);
    if (buffer != buffers->end() && value.defined()) return buffer->second = value;
  }
  check_parameter("replace", name, value);
  const auto parameter = std::find_if(parameters_.begin(), parameters_.end(), named);
  if (parameter == parameters_.end()) {
    throw ValueError(type_name() + ".replace", "the name of a parameter or buffer",
                     "'" + std::string(name) + "'");
  }
  parameter->second = value;
  return parameter->second.requires_grad_();
}

void Module::check_load(const StateCheck&, const std::string&) const {}

void Module::visit(const std::string& prefix, const Visitor& visitor) const {
  visitor(prefix, *this);
  for (const auto& [name, child] : children_) child->visit(joined(prefix, name), visitor);
}

StateDict Module::collect(std::initializer_list<StateDict Module::*> parts) const {
  StateDict all;
  std::unordered_set<const TensorImpl*> seen;
  visit("", [&](const std::string& prefix, const Module& module) {
    for (const auto part : parts) {
      for (const auto& [name, tensor] : module.*part) {
        if (seen.insert(&tensor.impl()).second) all.emplace_back(joined(prefix, name), tensor);
      }
    }
  });
  return all;
}

StateDict Module::named_parameters() const { return collect({&Module::parameters_}); }
StateDict Module::named_buffers() const {
  return collect({&Module::buffers_, &Module::transient_buffers_});
}

std::vector<Tensor> Module::parameters() const {
  std::vector<Tensor> all;
  for (auto& [name, parameter] : named_parameters()) all.push_back(parameter);
  return all;
}

std::vector<std::pair<std::string, Module*>> Module::named_modules() {
  std::vector<std::pair<std::string, Module*>> all;
  visit("", [&](const std::string& prefix, const Module& module) {
    all.emplace_back(prefix, const_cast<Module*>(&module));
  });
  return all;
}

std::vector<std::pair<std::string, Module*>> Module::children() const {
  std::vector<std::pair<std::string, Module*>> all;
  for (const auto& [name, child] : children_) all.emplace_back(name, child.get());
  return all;
}

int64_t Module::num_parameters() const {
  int64_t count = 0;
  for (const auto& [name, parameter] : named_parameters()) count += parameter.numel();
  return count;
}

Module& Module::apply(const std::function<void(Module&)>& f) {
  if (!f) throw ValueError(type_name() + ".apply", "a function", "an empty one");
  for (auto& [name, child] : children_) child->apply(f);
  f(*this);
  return *this;
}

// ---- modes --------------------------------------------------------------------------------------

Module& Module::train(bool training) {
  return apply([training](Module& module) { module.modes_.training = training; });
}

void Module::zero_grad() {
  for (Tensor& parameter : parameters()) parameter.zero_grad();
}

void Module::convert(const std::function<Tensor(const Tensor&)>& conversion) {
  const NoGradGuard no_grad;
  std::vector<std::pair<TensorImpl*, Tensor>> converted;
  const auto add = [&](const Tensor& tensor) {
    const Tensor result = conversion(tensor.detach());
    converted.emplace_back(&tensor.impl(), result);
  };
  for (const auto& [name, buffer] : named_buffers()) add(buffer);
  for (const auto& [name, parameter] : named_parameters()) {
    add(parameter);
    if (parameter.grad().defined()) add(parameter.grad());
  }
  // All conversions are made before the first takes effect: running out of memory changes nothing.
  for (auto& [target, source] : converted) replace_elements(*target, source);
}

Module& Module::to(Device device) {
  convert([device](const Tensor& tensor) { return tensor.to(device); });
  return *this;
}

Module& Module::to(DType dtype) {
  if (!is_floating(dtype)) {
    throw DTypeError(type_name() + ".to", "a floating dtype", name(dtype));
  }
  convert([dtype](const Tensor& tensor) {
    return is_floating(tensor.dtype()) ? tensor.to(dtype) : tensor;
  });
  return *this;
}

Module& Module::to(Device device, DType dtype) {
  if (!is_floating(dtype)) {
    throw DTypeError(type_name() + ".to", "a floating dtype", name(dtype));
  }
  convert([device, dtype](const Tensor& tensor) {
    return (is_floating(tensor.dtype()) ? tensor.to(dtype) : tensor).to(device);
  });
  return *this;
}

Module& Module::float8(bool on, const std::string& except) {
  const NamePattern left_out(type_name() + ".float8", except);
  for (const auto& [name, module] : named_modules()) {
    module->modes_.float8 = on && !left_out.matches(name);
  }
  return *this;
}

Module& Module::requires_grad_(bool value, const std::string& pattern) {
  const std::string op = type_name() + ".requires_grad_";
  const NamePattern wanted(op, pattern);
  std::vector<Tensor> matching;
  for (const auto& [name, parameter] : named_parameters()) {
    if (wanted.matches(name)) matching.push_back(parameter);
  }
  if (matching.empty() && pattern != ".*") {
    throw ValueError(op, "a pattern that matches a parameter", "'" + pattern + "'");
  }
  for (Tensor& parameter : matching) parameter.requires_grad_(value);
  return *this;
}

Module& Module::freeze(const std::string& pattern) {
  requires_grad_(false, pattern);
  for (Tensor& parameter : parameters()) {
    if (!parameter.requires_grad()) parameter.zero_grad();
  }
  return *this;
}

}  // namespace sash::nn
