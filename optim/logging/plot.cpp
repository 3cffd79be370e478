#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "../../core/error.h"
#include "../../tensor/io/replacement_file.h"
#include "plot.h"
#include "plot_parts.h"

namespace sash::optim::plot {

using namespace detail;

namespace {

constexpr std::array kColours = {"#1f5fa8", "#c2410c", "#15803d", "#7c3aed",
                                 "#b91c1c", "#0f766e", "#854d0e", "#525252"};

/// A faint series has the colour of the next that is not.
const char* colour_of(const std::vector<Series>& series, size_t index) {
  const auto before = series.begin() + static_cast<std::ptrdiff_t>(index);
  const auto number =
      std::count_if(series.begin(), before, [](const Series& s) { return !s.faint; });
  return kColours[static_cast<size_t>(number) % kColours.size()];
}

struct Point {
  double x, y;
};

/// The lowest and the highest of each column of pixels, in the order of `points`.
std::vector<Point> thinned(const std::vector<Point>& points) {
  std::vector<Point> kept;
  for (size_t first = 0, past = 0; first < points.size(); first = past) {
    const double column = std::floor(points[first].x);
    size_t low = first, high = first;
    for (past = first; past < points.size() && std::floor(points[past].x) == column; ++past) {
      if (points[past].y < points[low].y) low = past;
      if (points[past].y > points[high].y) high = past;
    }
    kept.push_back(points[std::min(low, high)]);
    if (low != high) kept.push_back(points[std::max(low, high)]);
  }
  return kept;
}

/// The lines and points of a series.
class Curve {
 public:
  Curve(Svg& svg, const Series& series, const char* colour)
      : svg_(svg),
        colour_(colour),
        style_(series.faint ? "\" stroke-opacity=\"0.35\" stroke-width=\"1"
                            : "\" stroke-width=\"2") {}

  void add(Point point) { points_.push_back(point); }
  /// Ends a line.
  void draw(double width) {
    if (static_cast<double>(points_.size()) > 2 * width) points_ = thinned(points_);
    if (points_.size() > 1) {
      std::string text = std::string("<polyline fill=\"none\" stroke=\"") + colour_ + style_ +
                         "\" stroke-linejoin=\"round\" points=\"";
      for (const auto& [x, y] : points_) text += pixels(x) + ',' + pixels(y) + ' ';
      text.back() = '"';
      svg_.add(text + "/>\n");
    }
    if (points_.size() == 1) mark(points_[0]);
    points_.clear();
  }
  void mark(Point point) {
    svg_.add("<circle cx=\"" + pixels(point.x) + "\" cy=\"" + pixels(point.y) +
             "\" r=\"3\" fill=\"" + colour_ + "\"/>\n");
  }

 private:
  Svg& svg_;
  const char* colour_;
  const char* style_;
  std::vector<Point> points_;
};

bool is_shown(double value, const Axis& axis) {
  return std::isfinite(value) && (!axis.log || value > 0);
}

/// The extrema of what is shown of all series, by x or y.
Scale scale_of(const std::vector<Series>& series, const LineOptions& options, bool of_x) {
  double low = kNone, high = kNone;
  for (const Series& one : series) {
    for (size_t i = 0; i < one.x.size(); ++i) {
      if (!is_shown(one.x[i], options.x) || !is_shown(one.y[i], options.y)) continue;
      const double value = of_x ? one.x[i] : one.y[i];
      low = std::fmin(low, value);
      high = std::fmax(high, value);
    }
  }
  const bool log = of_x ? options.x.log : options.y.log;
  if (std::isnan(low)) low = 1, high = log ? 10 : 2;
  return {low, high, log};
}

bool all_integers(const std::vector<Series>& series) {
  return std::all_of(series.begin(), series.end(), [](const Series& one) {
    return std::all_of(one.x.begin(), one.x.end(), [](double x) { return x == std::floor(x); });
  });
}

double widest(const std::vector<double>& ticks) {
  double width = 0;
  for (const double tick : ticks) width = std::max(width, width_of(number(tick)));
  return width;
}

/// A row of colours and names; returns the height that it takes.
double draw_legend(Svg& svg, const std::vector<Series>& series, double left, double right,
                   double top, bool draw) {
  double x = left, y = top;
  bool any = false;
  for (size_t i = 0; i < series.size(); ++i) {
    if (series[i].name.empty()) continue;
    const double width = 24 + width_of(series[i].name) + 16;
    if (any && x + width > right) x = left, y += 18;
    any = true;
    if (draw) {
      svg.line(x, y - 4, x + 18, y - 4, colour_of(series, i), series[i].faint ? 1 : 3);
      svg.text(x + 24, y, series[i].name);
    }
    x += width;
  }
  return any ? y - top + 18 : 0;
}

}  // namespace

std::string lines(const std::vector<Series>& series, const LineOptions& options) {
  constexpr const char* op = "plot::lines";
  for (const Series& one : series) {
    if (one.x.size() != one.y.size()) {
      throw ValueError(op, "as many x as y in '" + one.name + "'",
                       std::to_string(one.x.size()) + " and " + std::to_string(one.y.size()));
    }
  }
  if (options.width < 200 || options.height < 120) {
    throw ValueError(op, "a figure of 200 x 120 pixels or more",
                     std::to_string(options.width) + " x " + std::to_string(options.height));
  }
  const auto width = static_cast<double>(options.width);
  const auto height = static_cast<double>(options.height);
  Svg svg(width, height, options.title.empty() ? label_of(options.y) : options.title);
  Scale x = scale_of(series, options, true), y = scale_of(series, options, false);
  const int rows = static_cast<int>(std::clamp(height / 55, 2.0, 8.0));
  y.widen(rows);
  const std::vector<double> y_ticks = y.ticks(rows);

  const double left = std::max(40.0, 16 + widest(y_ticks)), right = width - 20;
  double top = options.title.empty() ? 12 : 36;
  top += draw_legend(svg, series, left, right, top, false);
  top += options.y.label.empty() ? 0 : 18;
  const double bottom = height - (options.x.label.empty() ? 26 : 44);
  svg.title(left, 20, options.title);
  draw_legend(svg, series, left, right, options.title.empty() ? 16 : 40, true);
  svg.text(8, top - 10, label_of(options.y));
  svg.text((left + right) / 2, height - 8, label_of(options.x), "text-anchor=\"middle\"");

  x.place(left + 4, right - 4);
  y.place(bottom, top);
  for (const double tick : y_ticks) {
    svg.line(left, y.at(tick), right, y.at(tick), kGrid);
    svg.text(left - 6, y.at(tick) + 4, number(tick), "text-anchor=\"end\"");
  }
  svg.line(left, bottom, right, bottom, kMuted);
  const int columns = static_cast<int>(std::clamp(width / 90, 2.0, 10.0));
  for (const double tick : x.ticks(columns, all_integers(series))) {
    svg.line(x.at(tick), bottom, x.at(tick), bottom + 4, kMuted);
    svg.text(x.at(tick), bottom + 17, number(tick), "text-anchor=\"middle\"");
  }
  for (size_t i = 0; i < series.size(); ++i) {
    const Series& one = series[i];
    Curve curve(svg, one, colour_of(series, i));
    for (size_t at = 0; at < one.x.size(); ++at) {
      if (!is_shown(one.x[at], options.x) || !is_shown(one.y[at], options.y)) {
        curve.draw(width);
        continue;
      }
      const Point point{x.at(one.x[at]), y.at(one.y[at])};
      curve.add(point);
      if (one.x.size() <= 30 && !one.faint) curve.mark(point);
    }
    curve.draw(width);
  }
  return svg.finish();
}

void save(const std::string& path, std::string_view svg) {
  ReplacementFile file("plot::save", path);
  file.write(svg.data(), svg.size());
  file.commit();
}

}  // namespace sash::optim::plot
