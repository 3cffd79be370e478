#include "progress_line.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string_view>

#include "../../core/backend/backend.h"
#include "../../core/readable.h"
#include "../../tensor/factories.h"
#include "../trainer/trainer.h"
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

constexpr size_t kBarWidth = 12;
constexpr int kHighestRank = 8;

std::string bar(int64_t step, int64_t steps) {
  const double share = static_cast<double>(step) / static_cast<double>(std::max(steps, int64_t{1}));
  const auto full = static_cast<size_t>(std::clamp(share, 0.0, 1.0) * kBarWidth);
  return '|' + std::string(full, '=') + std::string(kBarWidth - full, ' ') + '|';
}

void colour_bar(std::string& text) {
  const size_t first = text.find("|=");
  if (first == text.npos) return;
  text.insert(text.find_first_not_of('=', first + 1), "\033[0m");
  text.insert(first + 1, "\033[32m");
}

// https://no-color.org
bool has_colour() {
  const char* const none = std::getenv("NO_COLOR");
  const char* const kind = std::getenv("TERM");
  return !(none && *none) && !(kind && std::string_view(kind) == "dumb");
}

}  // namespace

// A figure of the line, with the space before it.
struct ProgressLine::Part {
  std::string text;
  int rank;  // the highest are left out first; 0 stays
};

namespace {

// Leaves parts out until the rest fits: each part is kept if it fits beside those of lower ranks.
template <class Part>
void fit(std::vector<Part>& parts, size_t columns) {
  size_t width = 0;
  for (int rank = 0; rank <= kHighestRank; ++rank) {
    for (Part& part : parts) {
      if (part.rank != rank) continue;
      const bool fits = width + part.text.size() <= columns || rank == 0;
      if (fits) width += part.text.size();
      if (!fits) part.text.clear();
    }
  }
}

// Breaks the line between parts where it would not fit.
template <class Part>
void wrap(std::vector<Part>& parts, size_t columns) {
  size_t width = 0;
  for (Part& part : parts) {
    const size_t gap = part.text.find_first_not_of(' ');
    if (width > 0 && width + part.text.size() > columns) {
      part.text.replace(0, gap, "\n  ");
      width = part.text.size() - 1;
    } else {
      width += part.text.size();
    }
  }
}

// Breaks a sentence between words.
std::string wrapped(std::string text, size_t columns) {
  for (size_t start = 0; start + columns < text.size();) {
    const size_t end = text.rfind(' ', start + columns);
    if (end == text.npos || end <= start) break;
    text[end] = '\n';
    start = end + 1;
  }
  return text;
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
  speed_.add(report.per_second() * report.seconds);
  const bool own = !report.validation.empty() || report.step == report.steps;
  if (!own && terminal_ && now - last_ < 0.1) return;
  if (!own && !terminal_ && (options_.log_every < 1 || report.step % options_.log_every != 0)) {
    return;
  }
  last_ = now;
  std::vector<Part> parts = parts_of(report);
  const bool rewritten = terminal_ && !own;
  const size_t columns = columns_to_fill();
  if (rewritten) {
    parts.insert(parts.begin() + 1, {" " + bar(report.step, report.steps), 3});
    if (columns > 0) fit(parts, columns);
  } else if (columns > 0) {
    wrap(parts, columns);
  }
  std::string text;
  for (const Part& part : parts) text += part.text;
  if (rewritten && has_colour()) colour_bar(text);
  std::fprintf(options_.out, "%s%s%s", terminal_ ? "\r\033[K" : "", text.c_str(),
               rewritten ? "" : "\n");
  std::fflush(options_.out);
  line_open_ = rewritten;
}

// 0 for any number. The last column stays free: some terminals break a line that fills it.
size_t ProgressLine::columns_to_fill() const {
  if (!terminal_) return 0;
  const int columns = options_.columns.value_or(columns_of(options_.out));
  return columns > 1 ? static_cast<size_t>(columns - 1) : 0;
}

std::vector<ProgressLine::Part> ProgressLine::parts_of(const StepReport& report) const {
  const double passed = last_ - start_;
  const double left = seconds_() * static_cast<double>(report.steps - report.step);
  const double rate = 1 / seconds_();
  std::vector<Part> parts{
      {"step " + std::to_string(report.step) + '/' + std::to_string(report.steps), 0},
      {" [" + clock_text(passed) + '<' + clock_text(left) + ", " +
           (rate >= 1 ? fixed(rate, 1) + " steps/s" : fixed(seconds_(), 1) + " s/step") + "]",
       1},
      {"  loss " + short_text(loss_()), 0}};
  for (const auto& [name, value] : report.metrics) {
    parts.push_back({"  " + name + ' ' + short_text(value), 2});
  }
  for (const auto& [name, value] : report.validation) {
    parts.push_back({"  val_" + name + ' ' + short_text(value), 2});
  }
  parts.push_back({"  lr " + to_text(report.lr, std::chars_format::scientific, 1), 4});
  parts.push_back({"  |g| " + fixed(report.grad_norm, 2), 6});
  if (report.per_second() > 0) {
    parts.push_back(
        {"  " + with_letter(speed_() / seconds_(), 1000, "") + ' ' + report.unit() + "/s", 5});
  }
  if (options_.step_flops > 0 && options_.peak_flops > 0) {
    const double share = options_.step_flops / seconds_() / options_.peak_flops;
    parts.push_back({"  " + fixed(100 * share, 0) + " % of peak", 7});
  }
  const auto bytes = static_cast<double>(backend(device_).memory_stats(device_).peak);
  parts.push_back({"  " + with_letter(bytes, 1024, " ") + "B", 8});
  return parts;
}

void ProgressLine::on_warning(const std::string& text) {
  finish();
  std::fprintf(stderr, "warning: %s\n", text.c_str());
}

void ProgressLine::on_end(Trainer& trainer) {
  finish();
  if (trainer.ending().empty() || trainer.step() >= trainer.options().steps) return;
  const size_t columns = columns_to_fill();
  const std::string text = columns > 0 ? wrapped(trainer.ending(), columns) : trainer.ending();
  std::fprintf(options_.out, "%s\n", text.c_str());
  std::fflush(options_.out);
}

void ProgressLine::finish() {
  if (line_open_) std::fprintf(options_.out, "\n");
  std::fflush(options_.out);
  line_open_ = false;
}

}  // namespace sash::optim
