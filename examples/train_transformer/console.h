#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

/// What is known after a step; the optional parts only now and then.
struct StepReport {
  int64_t step = 0;
  double loss = 0;
  std::optional<double> val_loss;
  double lr = 0;
  double grad_norm = 0;
  double ms = 0;
  double tokens_per_s = 0;
};

/// Shows progress: one line that keeps changing on a terminal, a line every second or so elsewhere.
class Console {
 public:
  explicit Console(int64_t steps);

  void report(const StepReport& step);
  /// Ends the changing line, if there is one.
  void finish();
  /// A line on stderr.
  void warn(const std::string& text);

 private:
  void print(const StepReport& step);

  int64_t steps_;
  bool is_terminal_;
  bool line_open_ = false;
  double smooth_ms_ = 0;
  std::chrono::steady_clock::time_point last_print_{};
};
