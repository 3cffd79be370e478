#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "../../core/export.h"

namespace sash::optim {

class Trainer;

/// The figures of one training step.
struct StepReport {
  int64_t step = 0;      ///< updates so far, this one included
  int64_t steps = 0;     ///< the run's goal
  double loss = 0;       ///< mean over the step's batches, by their weights
  double lr = 0;         ///< of the first group
  double grad_norm = 0;  ///< before clipping
  double seconds = 0;    ///< of the step, without validation and saving
  int64_t tokens = 0;    ///< elements of the batch's first tensor if it is integer, else 0
  int64_t samples = 0;   ///< of the batch: the first axis of its first tensor
  std::map<std::string, double> metrics{};     ///< what the step function added, such as accuracy
  std::map<std::string, double> validation{};  ///< after a validation: "loss" and the caller's own

  /// What speed is measured in: tokens if there are some, else samples.
  std::string unit() const { return tokens > 0 ? "tokens" : "samples"; }
  /// Tokens or samples of a second; 0 if neither or no time was counted.
  double per_second() const {
    return seconds > 0 ? static_cast<double>(tokens > 0 ? tokens : samples) / seconds : 0;
  }
};

/// Sees the steps of a training. All members do nothing by default. An error that a member throws
/// ends the training.
class SASH_API Callback {
 public:
  Callback() = default;
  Callback(const Callback&) = default;
  Callback& operator=(const Callback&) = default;
  virtual ~Callback();

  /// Before the first step, after a checkpoint was loaded.
  virtual void on_start(Trainer& trainer);
  /// After each step, and its validation if it has one.
  virtual void on_step(const StepReport& report);
  /// After a checkpoint of `step` was written to `path`, and old ones removed.
  virtual void on_save(const std::string& path, int64_t step);
  /// When training continues although something went wrong.
  virtual void on_warning(const std::string& text);
  /// After the last step, and when an error ends the training. If several throw, `run` throws the
  /// first of all errors.
  virtual void on_end(Trainer& trainer);
};

}  // namespace sash::optim
