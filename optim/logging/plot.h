#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "../../tensor/tensor.h"

/// Figures as SVG text: dark on white, without scripts or outside files, so that they stand in a
/// page of HTML as well as in a file.
///
///     plot::save("loss.svg", plot::lines({{.name = "training", .x = steps, .y = losses}},
///                                        {.x = {.label = "step"}, .y = {.label = "loss"}}));
namespace sash::optim::plot {

/// A curve. A value that is not finite, or not positive on a logarithmic axis, interrupts it.
struct Series {
  std::string name{};  ///< in the legend; none if empty
  std::vector<double> x{};
  std::vector<double> y{};
  bool faint = false;  ///< pale, in the colour of the next: raw values behind their average
};

struct Axis {
  std::string label{};
  std::string unit{};  ///< behind the label, in brackets
  bool log = false;
  std::vector<std::string> names{};  ///< of a heat map's rows or columns, instead of numbers
};

struct LineOptions {
  std::string title{};
  Axis x{};
  Axis y{};
  int64_t width = 640;  ///< pixels, at least 200
  int64_t height = 320;
};

/// Curves over common axes, which have ticks at round numbers. Of more points than the figure has
/// columns of pixels, each column keeps its lowest and highest. `ValueError` if a series has not as
/// many x as y.
SASH_API std::string lines(const std::vector<Series>& series, const LineOptions& options = {});

struct HeatMapOptions {
  std::string title{};
  Axis x{.label = "column"};  ///< `log` is ignored
  Axis y{.label = "row"};
  std::string value{};          ///< what the colours mean, at the bar
  std::optional<double> low{};  ///< values of the palest and the darkest colour: the extrema
  std::optional<double> high{};
  int64_t cell = 1;    ///< rows and columns that one of `values` stands for, at the ticks
  int64_t size = 320;  ///< pixels of the longer side, at least 64
};

/// The elements of `values` [rows, columns], of any dtype and device, as colours from white to dark
/// blue, and a bar that says which is which; NaN is grey. Above 128 rows or columns, a cell is the
/// mean of several. Names that have no room for all show every second one, every third, and so on;
/// those above 24 bytes are shortened. `ShapeError` unless there are two axes that are not empty;
/// `ValueError` if an axis has names, but not one for each row or column.
SASH_API std::string heat_map(const Tensor& values, const HeatMapOptions& options = {});

/// Writes a figure to a file, whole or not at all. `IoError` if it cannot.
SASH_API void save(const std::string& path, std::string_view svg);

/// Text for an SVG or HTML document: escapes `& < > "`; what is no character of XML becomes U+FFFD.
SASH_API std::string escape(std::string_view text);

}  // namespace sash::optim::plot

namespace sash {
namespace plot = optim::plot;  // the former name, deprecated
}  // namespace sash
