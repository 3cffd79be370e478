#pragma once

#include <concepts>
#include <iterator>

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

}  // namespace sash::nn
