#pragma once

#include <utility>
#include <vector>

#include "module.h"

namespace sash::nn {

/// Evaluation mode for a scope; at its end every module returns to its former mode.
class SASH_API EvalGuard {
 public:
  explicit EvalGuard(Module& module);
  ~EvalGuard();
  EvalGuard(const EvalGuard&) = delete;
  EvalGuard& operator=(const EvalGuard&) = delete;

 private:
  std::vector<std::pair<Module*, bool>> before_;
};

}  // namespace sash::nn
