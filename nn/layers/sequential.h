#pragma once

#include <concepts>

#include "../module.h"

namespace sash::nn {

/// Modules applied one after the other; children "0", "1", ...:
///
///     nn::Sequential net(nn::Linear(4, 16), nn::ReLU(), nn::Linear(16, 1));
class SASH_API Sequential : public Module {
 public:
  Sequential() = default;
  Sequential(Sequential&&) noexcept = default;
  Sequential& operator=(Sequential&& other) noexcept {
    std::vector<Module*> modules = std::move(other.modules_);  // first: `other` may be a child
    Module::operator=(std::move(other));
    modules_ = std::move(modules);
    return *this;
  }
  template <std::derived_from<Module>... Ms>
  requires(sizeof...(Ms) > 1 ||
           !(std::same_as<Ms, Sequential> || ...)) explicit Sequential(Ms&&... modules) {
    (append(std::move(modules)), ...);
  }

  /// Adds a module at the end.
  template <std::derived_from<Module> M>
  Sequential& append(M&& module) {
    modules_.push_back(&register_module(std::to_string(modules_.size()), std::move(module)));
    return *this;
  }

  /// `x` itself if there are no modules.
  Tensor forward(const Tensor& x) override;

  int64_t size() const { return static_cast<int64_t>(modules_.size()); }
  /// `IndexError` unless 0 <= index < size().
  Module& operator[](int64_t index) const;

 private:
  std::vector<Module*> modules_;
};

}  // namespace sash::nn
