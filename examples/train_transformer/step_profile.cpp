#include "step_profile.h"

#include <algorithm>
#include <cstdio>

#include <sash/optim/trainer/trainer.h>

namespace {
constexpr int64_t kSteps = 10;
}

void StepProfile::on_start(sash::optim::Trainer& trainer) {
  first_ = std::clamp<int64_t>(trainer.options().steps - trainer.step() - kSteps, 0, 3);
  if (first_ == 0) profiler_.emplace();
}

void StepProfile::on_step(const sash::optim::StepReport& step) {
  ++steps_;
  if (steps_ == first_) profiler_.emplace();
  const bool over = steps_ == first_ + kSteps || step.step == step.steps;
  if (!profiler_ || !over) return;
  profiler_->write_trace(path_);
  std::printf("%s%s has the trace of %lld steps\n", profiler_->table().c_str(), path_.c_str(),
              static_cast<long long>(steps_ - first_));
  profiler_.reset();
}

void StepProfile::stop() {
  if (profiler_) profiler_->stop();
}
