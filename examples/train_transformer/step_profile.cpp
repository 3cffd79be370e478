#include "step_profile.h"

#include <algorithm>
#include <cstdio>

#include <sash/core/error.h>
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
  std::printf("%s", profiler_->table().c_str());
  try {
    profiler_->write_trace(path_);
    std::printf("%s has the trace of %lld steps\n", path_.c_str(),
                static_cast<long long>(steps_ - first_));
  } catch (const sash::IoError& error) {
    failed_ = true;
    std::fprintf(stderr, "warning: %s\n", error.what());
  }
  profiler_.reset();
}

void StepProfile::stop() {
  if (profiler_) profiler_->stop();
}
