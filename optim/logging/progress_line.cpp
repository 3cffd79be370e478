#include "progress_line.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "../../core/backend/backend.h"
#include "../../core/readable.h"
#include "../../tensor/factories.h"
#include "clock.h"

namespace sash::optim {
namespace {

std::string fixed(double value, int digits) {
  return to_text(value, std::chars_format::fixed, digits);
}

std::string short_text(double value) { return to_text(value, std::chars_format::general, 4); }

std::string two_digits(long long number) {
  return (number < 10 ? "0" : "") + std::to_string(number);
}

/// "01:42", "2:01:42".
std::string clock_text(double seconds) {
  if (!std::isfinite(seconds)) return "?";
  const auto all = static_cast<long long>(std::min(seconds, 3.6e8));
  const std::string text = two_digits(all / 60 % 60) + ':' + two_digits(all % 60);
  return all < 3600 ? text : std::to_string(all / 3600) + ':' + text;
}

/// "12.1k" of thousands, "210 M" of a `gap`.
std::string with_letter(double value, double thousand, const char* gap) {
  constexpr const char* letters[] = {"", "k", "M", "G", "T"};
  size_t index = 0;
  for (; value >= thousand && index < 4; ++index) value /= thousand;
  return fixed(value, value < 100 && index > 0 ? 1 : 0) + gap + letters[index];
}

int columns_of(std::FILE* terminal) {
  winsize size{};
  if (::ioctl(::fileno(terminal), TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 0;
  return size.ws_col;
}

}  // namespace

ProgressLine::ProgressLine(const ProgressOptions& options)
    : options_(options),
      terminal_(options.terminal.value_or(::isatty(::fileno(options.out)) != 0)),
      device_(options.device.value_or(default_device())) {}

ProgressLine::~ProgressLine() { finish(); }

void ProgressLine::on_step(const StepReport& report) {
  const double now = clock_seconds();
  if (start_ == 0) start_ = now - report.seconds;
  loss_.add(report.loss);
  seconds_.add(report.seconds);
  tokens_.add(static_cast<double>(report.tokens));
  const bool own = !report.validation.empty() || report.step == report.steps;
  if (!own && terminal_ && now - last_ < 0.1) return;
  if (!own && !terminal_ && (options_.log_every < 1 || report.step % options_.log_every != 0)) {
    return;
  }
  last_ = now;
  std::string text = line(report);
  const int columns = terminal_ && !own ? columns_of(options_.out) : 0;
  if (columns > 0) text.resize(std::min(text.size(), static_cast<size_t>(columns - 1)));
  std::fprintf(options_.out, "%s%s%s", terminal_ ? "\r\033[K" : "", text.c_str(),
               terminal_ && !own ? "" : "\n");
  std::fflush(options_.out);
  line_open_ = terminal_ && !own;
}

std::string ProgressLine::line(const StepReport& report) const {
  const auto text = [](long long number) { return std::to_string(number); };
  const double passed = last_ - start_;
  const double left = seconds_() * static_cast<double>(report.steps - report.step);
  const double rate = 1 / seconds_();
  std::string line = "step " + text(report.step) + '/' + text(report.steps) + " [" +
                     clock_text(passed) + '<' + clock_text(left) + ", " +
                     (rate >= 1 ? fixed(rate, 1) + " steps/s" : fixed(seconds_(), 1) + " s/step") +
                     "]  loss " + short_text(loss_());
  for (const auto& [name, value] : report.metrics) line += "  " + name + ' ' + short_text(value);
  for (const auto& [name, value] : report.validation) {
    line += "  val_" + name + ' ' + short_text(value);
  }
  line += "  lr " + to_text(report.lr, std::chars_format::scientific, 1) + "  |g| " +
          fixed(report.grad_norm, 2);
  if (report.tokens > 0) {
    line += "  " + with_letter(tokens_() / seconds_(), 1000, "") + " tokens/s";
  }
  if (options_.step_flops > 0 && options_.peak_flops > 0) {
    const double share = options_.step_flops / seconds_() / options_.peak_flops;
    line += "  " + fixed(100 * share, 0) + " % of peak";
  }
  const auto bytes = static_cast<double>(backend(device_).memory_stats(device_).peak);
  return line + "  " + with_letter(bytes, 1024, " ") + "B";
}

void ProgressLine::on_warning(const std::string& text) {
  finish();
  std::fprintf(stderr, "warning: %s\n", text.c_str());
}

void ProgressLine::on_end(Trainer&) { finish(); }

void ProgressLine::finish() {
  if (line_open_) std::fprintf(options_.out, "\n");
  std::fflush(options_.out);
  line_open_ = false;
}

}  // namespace sash::optim
