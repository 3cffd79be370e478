#pragma once

#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "plot.h"

/// What the figures of `plot.h` are made of.
namespace sash::optim::plot::detail {

inline constexpr const char* kMuted = "#4a4741";
inline constexpr const char* kGrid = "#e4e2dc";
inline constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

/// Up to a tenth of a pixel, or of `digits` digits; unlike printf, without regard to the locale.
std::string pixels(double value, int digits = 1);
/// A label of a tick: 0.25, 4000, 20k, 1.5M, 3e-5.
std::string number(double value);
std::string label_of(const Axis& axis);
/// About how many pixels a text is wide.
double width_of(std::string_view text);

/// The extent of an axis in values and pixels, and its ticks.
class Scale {
 public:
  /// Of equal ends, a range around them.
  Scale(double low, double high, bool log);
  /// Moves the ends to ticks, and a low end that is near zero to zero.
  void widen(int ticks);
  /// The pixels of the low and of the high end.
  void place(double from, double to);

  double at(double value) const;
  /// About so many round numbers.
  std::vector<double> ticks(int about, bool integers = false) const;

 private:
  std::vector<double> powers(int about) const;

  double low_, high_;
  bool log_;
  double from_ = 0, to_ = 1;
};

/// The text of a figure.
class Svg {
 public:
  Svg(double width, double height, std::string_view title);

  /// `more` are attributes.
  void text(double x, double y, std::string_view words, const std::string& more = "");
  void title(double x, double y, std::string_view words);
  void line(double x1, double y1, double x2, double y2, const char* colour, double width = 1);
  /// An empty rectangle.
  void frame(double x, double y, double width, double height);
  void add(const std::string& element) { text_ += element; }
  std::string finish() { return text_ + "</svg>\n"; }

 private:
  std::string text_;
};

}  // namespace sash::optim::plot::detail
