#include "eval_guard.h"

namespace sash::nn {

EvalGuard::EvalGuard(Module& module) {
  for (const auto& [name, part] : module.named_modules()) {
    before_.emplace_back(part, part->is_training());
  }
  module.eval();
}

EvalGuard::~EvalGuard() {
  // Parents come first, and `train` sets all below.
  for (const auto& [part, training] : before_) part->train(training);
}

}  // namespace sash::nn
