#pragma once

#include <concepts>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../../core/error.h"
#include "../module.h"

namespace sash::nn {

/// A list of modules of one type, children "0", "1", ..., which the parent calls: `for (Block&
/// block : blocks) x = block(x);`
template <std::derived_from<Module> M = Module>
class ModuleList : public Module {
 public:
  class Iterator {
   public:
    using iterator_category = std::forward_iterator_tag;
    using value_type = M;
    using difference_type = std::ptrdiff_t;
    using pointer = M*;
    using reference = M&;

    Iterator() = default;
    explicit Iterator(M* const* at) : at_(at) {}
    M& operator*() const { return **at_; }
    M* operator->() const { return *at_; }
    Iterator& operator++() {
      ++at_;
      return *this;
    }
    Iterator operator++(int) { return Iterator(at_++); }
    friend bool operator==(const Iterator&, const Iterator&) = default;

   private:
    M* const* at_ = nullptr;
  };

  ModuleList() = default;
  ModuleList(ModuleList&&) noexcept = default;
  ModuleList& operator=(ModuleList&& other) noexcept {
    std::vector<M*> modules = std::move(other.modules_);  // first: `other` may be a child
    Module::operator=(std::move(other));
    modules_ = std::move(modules);
    return *this;
  }

  /// Adds a module at the end.
  template <std::derived_from<M> Made>
  Made& append(Made&& module) {
    Made& added = this->register_module(std::to_string(modules_.size()), std::move(module));
    modules_.push_back(&added);
    return added;
  }
  /// Makes a module at the end.
  template <class... Args>
  M& emplace(Args&&... args) {
    return append(M(std::forward<Args>(args)...));
  }

  int64_t size() const { return static_cast<int64_t>(modules_.size()); }
  /// `IndexError` unless 0 <= index < size().
  M& operator[](int64_t index) const {
    if (index >= 0 && index < size()) return *modules_[static_cast<size_t>(index)];
    throw IndexError("ModuleList", "an index below " + std::to_string(size()),
                     std::to_string(index));
  }
  Iterator begin() const { return Iterator(modules_.data()); }
  Iterator end() const { return Iterator(modules_.data() + modules_.size()); }

  std::string describe() const override { return "ModuleList"; }

 private:
  std::vector<M*> modules_;
};

/// Modules of one type by name, in the order in which they were added: `for (const auto& [name,
/// head] : heads)`. The children have these names.
template <std::derived_from<Module> M = Module>
class ModuleDict : public Module {
 public:
  ModuleDict() = default;
  ModuleDict(ModuleDict&&) noexcept = default;
  ModuleDict& operator=(ModuleDict&& other) noexcept {
    auto modules = std::move(other.modules_);  // first: `other` may be a child
    Module::operator=(std::move(other));
    modules_ = std::move(modules);
    return *this;
  }

  /// Adds a module. `ValueError` for a name that is taken, or no name of a child.
  template <std::derived_from<M> Made>
  Made& insert(const std::string& name, Made&& module) {
    Made& added = this->register_module(name, std::move(module));
    modules_.emplace_back(name, &added);
    return added;
  }
  /// Makes a module.
  template <class... Args>
  M& emplace(const std::string& name, Args&&... args) {
    return insert(name, M(std::forward<Args>(args)...));
  }

  int64_t size() const { return static_cast<int64_t>(modules_.size()); }
  bool contains(std::string_view name) const { return find(name) != nullptr; }
  /// `IndexError` that lists the names unless there is such a module.
  M& operator[](std::string_view name) const {
    if (M* const module = find(name)) return *module;
    std::string names;
    for (const auto& entry : modules_) names += (names.empty() ? "" : ", ") + entry.first;
    throw IndexError("ModuleDict",
                     names.empty() ? "a module, of which there is none" : "one of " + names,
                     std::string(name));
  }
  auto begin() const { return modules_.begin(); }
  auto end() const { return modules_.end(); }

  std::string describe() const override { return "ModuleDict"; }

 private:
  M* find(std::string_view name) const {
    for (const auto& [key, module] : modules_) {
      if (key == name) return module;
    }
    return nullptr;
  }

  std::vector<std::pair<std::string, M*>> modules_;
};

/// Parameters "0", "1", ..., which the parent uses.
class SASH_API ParameterList : public Module {
 public:
  /// Adds a parameter at the end, as `register_parameter`.
  Tensor append(const Tensor& value) {
    return values_.emplace_back(register_parameter(std::to_string(values_.size()), value));
  }

  int64_t size() const { return static_cast<int64_t>(values_.size()); }
  /// `IndexError` unless 0 <= index < size().
  const Tensor& operator[](int64_t index) const {
    if (index >= 0 && index < size()) return values_[static_cast<size_t>(index)];
    throw IndexError("ParameterList", "an index below " + std::to_string(size()),
                     std::to_string(index));
  }
  auto begin() const { return values_.begin(); }
  auto end() const { return values_.end(); }

 private:
  std::vector<Tensor> values_;
};

}  // namespace sash::nn
