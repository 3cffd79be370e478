#include <algorithm>
#include <cmath>
#include <limits>

#include "../../core/error.h"
#include "../../core/quote.h"
#include "plot.h"
#include "plot_parts.h"

namespace sash::optim::plot {

using namespace detail;

namespace {

constexpr int64_t kCells = 128;  // along the longer side of a heat map
constexpr int64_t kLevels = 64;

std::string colour_of_level(int64_t level) {
  constexpr double ramp[][3] = {
      {255, 255, 255}, {219, 233, 246}, {137, 190, 220}, {53, 126, 185}, {8, 48, 107}};
  const double place = 4 * static_cast<double>(level) / (kLevels - 1);
  const auto step = std::min<size_t>(3, static_cast<size_t>(place));
  std::string colour = "#";
  for (int part = 0; part < 3; ++part) {
    const double from = ramp[step][part], to = ramp[step + 1][part];
    const int value = static_cast<int>(from + (place - static_cast<double>(step)) * (to - from));
    for (const int digit : {value / 16, value % 16}) colour += "0123456789abcdef"[digit];
  }
  return colour;
}

/// Means over squares of cells.
struct Cells {
  int64_t rows, columns, side;
  std::vector<double> values;
};

Cells cells_of(const Tensor& tensor) {
  if (tensor.rank() != 2 || tensor.numel() == 0) {
    throw ShapeError("plot::heat_map", "[rows, columns], neither of them 0",
                     to_string(tensor.shape()));
  }
  const int64_t rows = tensor.size(0), columns = tensor.size(1);
  const int64_t side = (std::max(rows, columns) + kCells - 1) / kCells;
  Cells cells{(rows + side - 1) / side, (columns + side - 1) / side, side, {}};
  cells.values.resize(static_cast<size_t>(cells.rows * cells.columns));
  const std::vector<double> all = tensor.detach().to_vector<double>();
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      const int64_t count =
          std::min(side, rows - i / side * side) * std::min(side, columns - j / side * side);
      cells.values[static_cast<size_t>(i / side * cells.columns + j / side)] +=
          all[static_cast<size_t>(i * columns + j)] / static_cast<double>(count);
    }
  }
  return cells;
}

/// A path for each colour; neighbours of one colour in a row are one rectangle of it.
std::string painted(const Cells& cells, double low, double high) {
  std::vector<std::string> paths(kLevels + 1);  // the last: what has no colour
  const auto level_of = [&](int64_t row, int64_t column) {
    const double value = cells.values[static_cast<size_t>(row * cells.columns + column)];
    const double share = (value - low) / (high - low);
    if (std::isnan(share)) return kLevels;
    return std::lround(std::clamp(share, 0.0, 1.0) * (kLevels - 1));
  };
  for (int64_t row = 0; row < cells.rows; ++row) {
    for (int64_t start = 0, end = 0; start < cells.columns; start = end) {
      const int64_t level = level_of(row, start);
      while (end < cells.columns && level_of(row, end) == level) ++end;
      const std::string length = std::to_string(end - start);
      paths[static_cast<size_t>(level)] += 'M' + std::to_string(start) + ' ' + std::to_string(row) +
                                           'h' + length + "v1h-" + length + 'z';
    }
  }
  std::string text;
  for (int64_t level = 1; level <= kLevels; ++level) {  // level 0 is the ground
    const std::string& path = paths[static_cast<size_t>(level)];
    if (path.empty()) continue;
    text += "<path fill=\"" + (level == kLevels ? "#b5b1a8" : colour_of_level(level)) + "\" d=\"" +
            path + "\"/>\n";
  }
  return text;
}

/// The bar of colours at `left`.
void draw_bar(Svg& svg, double low, double high, const std::string& label, double left, double top,
              double height) {
  for (int64_t level = 0; level < kLevels; ++level) {
    const double step = height / kLevels;
    svg.add("<rect x=\"" + pixels(left) + "\" y=\"" +
            pixels(top + height - step * static_cast<double>(level + 1), 2) +
            "\" width=\"12\" height=\"" + pixels(step + 0.5, 2) + "\" fill=\"" +
            colour_of_level(level) + "\"/>\n");
  }
  svg.frame(left, top, 12, height);
  Scale scale(low, high, false);
  scale.place(top + height, top);
  for (const double tick : scale.ticks(height < 150 ? 4 : 5)) {
    svg.text(left + 17, scale.at(tick) + 4, number(tick));
  }
  svg.text(left, top - 8, label);
}

std::string shortened(const std::string& name) { return excerpt(name, 24); }

/// Of the longest name; 0 without names.
double width_of_names(const Axis& axis) {
  double width = 0;
  for (const std::string& name : axis.names) width = std::max(width, width_of(shortened(name)));
  return width;
}

void check_names(const Axis& axis, int64_t count) {
  if (axis.names.empty() || static_cast<int64_t>(axis.names.size()) == count) return;
  throw ValueError("plot::heat_map",
                   std::to_string(count) + " names on the axis " + in_quotes(axis.label),
                   std::to_string(axis.names.size()));
}

struct Tick {
  double place;
  std::string text;
};

/// Names, of which each has `needed` pixels, or numbers. They stand at the middle of their row or
/// column.
std::vector<Tick> ticks_of(const Axis& axis, const Scale& scale, int64_t cell, double extent,
                           double needed) {
  std::vector<Tick> ticks;
  const size_t count = axis.names.size();
  const double room = extent / static_cast<double>(std::max<size_t>(count, 1));
  const auto stride = static_cast<size_t>(std::ceil(std::max(1.0, needed / room)));
  for (size_t i = 0; i < count; i += stride) {
    const double middle = (static_cast<double>(i) + 0.5) * static_cast<double>(cell) - 0.5;
    ticks.push_back({scale.at(middle), shortened(axis.names[i])});
  }
  if (count > 0) return ticks;
  for (const double tick : scale.ticks(extent < 150 ? 3 : 6, true)) {
    ticks.push_back({scale.at(tick), number(tick)});
  }
  return ticks;
}

}  // namespace

std::string heat_map(const Tensor& values, const HeatMapOptions& options) {
  if (options.size < 64 || options.cell < 1) {
    throw ValueError("plot::heat_map", "64 pixels or more, and cells of 1 or more",
                     std::to_string(options.size) + " and " + std::to_string(options.cell));
  }
  const Cells cells = cells_of(values);
  double low = kNone, high = kNone;
  for (const double value : cells.values) {
    if (!std::isfinite(value)) continue;
    low = std::fmin(low, value);
    high = std::fmax(high, value);
  }
  low = options.low.value_or(std::isnan(low) ? 0 : low);
  high = options.high.value_or(std::isnan(high) ? 1 : high);
  if (!(high > low)) high = low + 1;

  check_names(options.x, values.size(1));
  check_names(options.y, values.size(0));
  const auto rows = static_cast<double>(cells.rows), columns = static_cast<double>(cells.columns);
  const double zoom = static_cast<double>(options.size) / std::max(rows, columns);
  const double width = std::max(24.0, zoom * columns), height = std::max(24.0, zoom * rows);
  const double each = static_cast<double>(cells.side * options.cell);
  const double most_rows = static_cast<double>(values.size(0) * options.cell);
  const double name = width_of_names(options.x);
  const double room = width / static_cast<double>(values.size(1));
  const bool turned = name > 0 && name + 6 > room;  // by 45 degrees
  const double slant = turned ? 0.71 * name : 0;
  const double side =
      options.y.names.empty() ? width_of(number(most_rows)) : width_of_names(options.y);
  const double left = std::max({34.0, 14 + side, slant});
  const double top = options.title.empty() ? 26 : 54, bottom = top + height;
  const double bar = std::max(60.0, 12 + width_of(options.value));
  const double title = width_of(options.title) * 14 / 12;
  const double total = std::max(left + width + 24 + bar, left + title + 8);
  Svg svg(total, bottom + 44 + slant, options.title);
  svg.title(left, 20, options.title);
  svg.text(8, top - 8, label_of(options.y));
  svg.text(left + width / 2, bottom + 34 + slant, label_of(options.x), "text-anchor=\"middle\"");
  svg.add("<g transform=\"translate(" + pixels(left) + ' ' + pixels(top) + ") scale(" +
          pixels(width / columns, 4) + ' ' + pixels(height / rows, 4) +
          ")\" shape-rendering=\"crispEdges\">\n" + painted(cells, low, high) + "</g>\n");
  svg.frame(left, top, width, height);
  Scale x(-0.5, each * columns - 0.5, false), y(-0.5, each * rows - 0.5, false);
  x.place(left, left + width);
  y.place(top, bottom);
  for (const auto& [place, text] : ticks_of(options.x, x, options.cell, width, turned ? 18 : 1)) {
    const std::string about = pixels(place) + ' ' + pixels(bottom + 14);
    svg.text(place, bottom + (turned ? 14 : 16), text,
             turned ? "text-anchor=\"end\" transform=\"rotate(-45 " + about + ")\""
                    : "text-anchor=\"middle\"");
  }
  for (const auto& [place, text] : ticks_of(options.y, y, options.cell, height, 14)) {
    svg.text(left - 6, place + 4, text, "text-anchor=\"end\"");
  }
  draw_bar(svg, low, high, options.value, left + width + 20, top, height);
  return svg.finish();
}

}  // namespace sash::optim::plot
