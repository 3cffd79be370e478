#include "plot_parts.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "../../core/quote.h"
#include "../../core/readable.h"

namespace sash::optim::plot::detail {
namespace {

constexpr double kMost = std::numeric_limits<double>::max();
constexpr double kLeast = std::numeric_limits<double>::denorm_min();

/// The least 1, 2 or 5 times a power of ten that is not below `step`; 1e308 if a double holds none.
double round_step(double step) {
  const double power = std::pow(10, std::floor(std::log10(step)));
  double rounded = 10 * power;
  for (const double factor : {5, 2, 1}) {
    if (factor * power >= step * (1 - 1e-9)) rounded = factor * power;
  }
  return std::isinf(rounded) ? power : std::max(rounded, kLeast);
}

}  // namespace

std::string pixels(double value, int digits) {
  std::string text = to_text(value, std::chars_format::fixed, digits);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

std::string number(double value) {
  const double size = std::abs(value);
  if (size != 0 && (size < 1e-3 || size >= 1e15)) {
    const std::string text = to_text(value, std::chars_format::scientific, 5);
    const size_t e = text.find('e');
    std::string digits = text.substr(0, e), exponent = text.substr(e + 2);
    digits.erase(digits.find_last_not_of('0') + 1);
    if (digits.back() == '.') digits.pop_back();
    exponent.erase(0, std::min(exponent.find_first_not_of('0'), exponent.size() - 1));
    return digits + (text[e + 1] == '-' ? "e-" : "e") + exponent;
  }
  for (const auto& [unit, letter] : {std::pair{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}}) {
    if (size >= std::max(unit, 1e4)) {
      return to_text(value / unit, std::chars_format::general, 6) + letter;
    }
  }
  return to_text(value, std::chars_format::general, 6);
}

std::string label_of(const Axis& axis) {
  return axis.unit.empty() ? axis.label : axis.label + " (" + axis.unit + ")";
}

double width_of(std::string_view text) {
  constexpr double kLetter = 6.6;
  return kLetter * static_cast<double>(utf8_length(text));
}

Scale::Scale(double low, double high, bool log) : low_(low), high_(high), log_(log) {
  // Ends that differ by rounding count as equal, and so do those too small for halves and steps.
  constexpr double kTiny = 1e-300;
  const double size = std::max(std::abs(low_), std::abs(high_));
  if (log_ ? high_ / low_ > 1 + 1e-9 : high_ - low_ > 1e-9 * std::max(size, kTiny)) return;
  if (log_) {
    low_ = std::max(low_ / 2, kLeast);
    high_ = std::min(high_ * 1.5, kMost);
    return;
  }
  const double margin = size < kTiny ? 1 : size / 10;
  low_ = std::max(low_ - margin, -kMost);
  high_ = std::min(high_ + margin, kMost);
}

void Scale::widen(int ticks) {
  if (log_) {
    const double margin = std::pow(high_, 0.04) / std::pow(low_, 0.04);
    low_ = std::max(low_ / margin, kLeast);
    high_ = std::min(high_ * margin, kMost);
    return;
  }
  if (low_ > 0 && low_ < 0.25 * high_) low_ = 0;
  const double step = round_step((high_ / 2 - low_ / 2) / (ticks / 2.0));
  const double low = step * std::floor(low_ / step + 1e-9);
  const double high = step * std::ceil(high_ / step - 1e-9);
  if (!std::isfinite(low) || !std::isfinite(high)) return;
  low_ = low;
  high_ = high;
}

void Scale::place(double from, double to) {
  from_ = from;
  to_ = to;
}

double Scale::at(double value) const {
  // Neither a difference nor a quotient of the ends need be finite.
  const double share = log_
                           ? (std::log(value) - std::log(low_)) / (std::log(high_) - std::log(low_))
                           : (value / 2 - low_ / 2) / (high_ / 2 - low_ / 2);
  return from_ + share * (to_ - from_);
}

std::vector<double> Scale::ticks(int about, bool integers) const {
  if (log_ && high_ / low_ > 10) return powers(about);
  double step = round_step((high_ / 2 - low_ / 2) / (about / 2.0));
  if (integers) step = std::max(step, 1.0);
  std::vector<double> values;
  for (double i = std::ceil(low_ / step - 1e-9) + 0.0 /* not -0 */; i <= high_ / step + 1e-9; ++i) {
    values.push_back(i * step);
  }
  return values;
}

std::vector<double> Scale::powers(int about) const {
  const double decades = std::log10(high_) - std::log10(low_);
  const double stride = std::ceil(decades / about);
  std::vector<double> values;
  for (double power = stride * std::floor(std::log10(low_) / stride); std::pow(10, power) <= high_;
       power += stride) {
    for (const double factor : {1, 2, 5}) {
      const double value = factor * std::pow(10, power);
      if (factor > 1 && decades > 3) break;
      if (value >= low_ && value <= high_) values.push_back(value);
    }
  }
  return values;
}

Svg::Svg(double width, double height, std::string_view title) {
  const std::string w = pixels(width), h = pixels(height);
  text_ = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + w + "\" height=\"" + h +
          "\" viewBox=\"0 0 " + w + ' ' + h +
          "\" font-family=\"system-ui, sans-serif\" font-size=\"12\" role=\"img\">\n<title>" +
          escape(title) + "</title>\n<rect width=\"" + w + "\" height=\"" + h +
          "\" fill=\"#ffffff\"/>\n";
}

void Svg::text(double x, double y, std::string_view words, const std::string& more) {
  if (words.empty()) return;
  text_ += "<text x=\"" + pixels(x) + "\" y=\"" + pixels(y) + "\" fill=\"" + kMuted + "\"" +
           (more.empty() ? "" : " ") + more + '>' + escape(words) + "</text>\n";
}

void Svg::title(double x, double y, std::string_view words) {
  if (words.empty()) return;
  text_ += "<text x=\"" + pixels(x) + "\" y=\"" + pixels(y) +
           "\" fill=\"#1c1b19\" font-size=\"14\" font-weight=\"600\">" + escape(words) +
           "</text>\n";
}

void Svg::line(double x1, double y1, double x2, double y2, const char* colour, double width) {
  text_ += "<line x1=\"" + pixels(x1) + "\" y1=\"" + pixels(y1) + "\" x2=\"" + pixels(x2) +
           "\" y2=\"" + pixels(y2) + "\" stroke=\"" + colour + "\" stroke-width=\"" +
           pixels(width) + "\"/>\n";
}

void Svg::frame(double x, double y, double width, double height) {
  text_ += "<rect x=\"" + pixels(x) + "\" y=\"" + pixels(y) + "\" width=\"" + pixels(width) +
           "\" height=\"" + pixels(height) + "\" fill=\"none\" stroke=\"" + kMuted +
           "\" stroke-width=\"0.5\"/>\n";
}

}  // namespace sash::optim::plot::detail
