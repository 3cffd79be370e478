#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <sash/optim/profiler.h>
#include <sash/optim/trainer/callback.h>

/// --profile: measures ten steps, from the fourth on if there are so many.
class StepProfile : public sash::optim::Callback {
 public:
  explicit StepProfile(std::string path) : path_(std::move(path)) {}

  void on_start(sash::optim::Trainer& trainer) override;
  void on_step(const sash::optim::StepReport& step) override;
  /// For a validation, which is no part of a step.
  void stop();
  /// Whether the trace could not be written, of which it has warned.
  bool failed() const { return failed_; }

 private:
  std::string path_;
  int64_t first_ = 0, steps_ = 0;
  bool failed_ = false;
  std::optional<sash::optim::Profiler> profiler_;
};
