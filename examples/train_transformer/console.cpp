#include "console.h"

#include <unistd.h>

#include <cstdio>

Console::Console(int64_t steps) : steps_(steps), is_terminal_(isatty(STDOUT_FILENO) != 0) {}

void Console::report(const StepReport& step) {
  smooth_ms_ = smooth_ms_ == 0 ? step.ms : 0.9 * smooth_ms_ + 0.1 * step.ms;
  const auto now = std::chrono::steady_clock::now();
  const auto pause = std::chrono::milliseconds(is_terminal_ ? 100 : 2000);
  if (!step.val_loss && step.step != steps_ && now - last_print_ < pause) return;
  last_print_ = now;
  print(step);
}

void Console::print(const StepReport& step) {
  const double left = smooth_ms_ * static_cast<double>(steps_ - step.step) / 1000;
  std::printf(
      "%sstep %lld/%lld  loss %.3f  lr %.2e  |g| %.2f  %.0f ms  %.1f k tokens/s  %.0f s left",
      is_terminal_ ? "\r\033[K" : "", static_cast<long long>(step.step),
      static_cast<long long>(steps_), step.loss, step.lr, step.grad_norm, smooth_ms_,
      step.tokens_per_s / 1000, left);
  if (step.val_loss) std::printf("  validation %.3f", *step.val_loss);
  line_open_ = is_terminal_ && !step.val_loss;
  if (!line_open_) std::printf("\n");
  std::fflush(stdout);
}

void Console::finish() {
  if (line_open_) std::printf("\n");
  line_open_ = false;
}

void Console::warn(const std::string& text) {
  finish();
  std::fflush(stdout);
  std::fprintf(stderr, "warning: %s\n", text.c_str());
}
