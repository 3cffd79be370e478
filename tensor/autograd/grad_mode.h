#pragma once

#include "../../core/export.h"

namespace sash {

/// Whether ops of this thread are recorded; true at first.
SASH_API bool grad_enabled();
SASH_API void set_grad_enabled(bool enabled);

/// Sets recording for a scope.
class GradModeGuard {
 public:
  explicit GradModeGuard(bool enabled) : before_(grad_enabled()) { set_grad_enabled(enabled); }
  ~GradModeGuard() { set_grad_enabled(before_); }
  GradModeGuard(const GradModeGuard&) = delete;
  GradModeGuard& operator=(const GradModeGuard&) = delete;

 private:
  bool before_;
};

/// No recording in this scope.
class NoGradGuard : public GradModeGuard {
 public:
  NoGradGuard() : GradModeGuard(false) {}
};

/// Recording in this scope, inside a `NoGradGuard` too.
class EnableGradGuard : public GradModeGuard {
 public:
  EnableGradGuard() : GradModeGuard(true) {}
};

}  // namespace sash
