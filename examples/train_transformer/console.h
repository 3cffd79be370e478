#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

/// The figures of one training step. `val_loss` is set only for steps with a validation.
struct StepReport {
  int64_t step = 0;
  double loss = 0;
  std::optional<double> val_loss;
  double lr = 0;
  double grad_norm = 0;
  double ms = 0;
  double tokens_per_s = 0;
};

/// Prints progress: on a terminal one line, updated at most every 0.1 s; elsewhere a new line at
/// most every 2 s. Steps with a validation, and the last step, are always printed.
class Console {
 public:
  explicit Console(int64_t steps);

  void report(const StepReport& step);
  /// Ends the line in progress, if there is one.
  void finish();
  /// Prints a warning on stderr.
  void warn(const std::string& text);

 private:
  void print(const StepReport& step);

  int64_t steps_;
  bool is_terminal_;
  bool line_open_ = false;
  double smooth_ms_ = 0;
  std::chrono::steady_clock::time_point last_print_{};
};
