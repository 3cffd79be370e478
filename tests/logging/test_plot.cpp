// Figures: ticks at round numbers, what interrupts a curve, what stays of many points, heat maps.
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include <doctest/doctest.h>

#include <sash/optim/logging/plot.h>
#include <sash/tensor/factories.h>

#include "../support/expect_error.h"
#include "../support/temporary_folder.h"

using namespace sash;
using namespace sash::testing;

namespace {

size_t count(const std::string& text, const std::string& part) {
  size_t times = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++times;
  return times;
}

/// The labels in order, joined by spaces.
std::string labels(const std::string& svg) {
  std::string all;
  for (size_t at = svg.find("<text"); at != std::string::npos; at = svg.find("<text", at + 1)) {
    const size_t start = svg.find('>', at) + 1;
    all += (all.empty() ? "" : " ") + svg.substr(start, svg.find('<', start) - start);
  }
  return all;
}

Tensor matrix(const std::vector<double>& values, const Shape& shape) {
  return tensor(values, shape, {.dtype = DType::float32, .device = kCPU});
}

}  // namespace

TEST_CASE("plot: axes with round ticks, labels and units, a legend") {
  const std::string svg = plot::lines(
      {{.name = "training", .x = {0, 50, 100}, .y = {3, 1.2, 0.9}},
       {.name = "a < b", .x = {100}, .y = {1.5}}},
      {.title = "Loss & more", .x = {.label = "step"}, .y = {.label = "loss", .unit = "nats"}});
  CHECK(labels(svg) ==
        "Loss &amp; more training a &lt; b loss (nats) step 0.5 1 1.5 2 2.5 3 0 20 40 60 80 100");
  CHECK(count(svg, "<polyline") == 1);  // one value is a point
  CHECK(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"640\" height=\"320\""));
  CHECK(svg.ends_with("</svg>\n"));
}

TEST_CASE("plot: a logarithmic axis has powers of ten, and drops what is not positive") {
  const plot::LineOptions log{.y = {.log = true}};
  const std::string svg = plot::lines({{.x = {1, 2, 3, 4, 5}, .y = {1e-5, 1, 0, 10, 1e4}}}, log);
  CHECK(labels(svg) == "1e-4 0.01 1 100 10k 1 2 3 4 5");
  CHECK(count(svg, "<polyline") == 2);
  CHECK(labels(plot::lines({{.x = {1, 2}, .y = {2, 30}}}, log)) == "2 5 10 20 1 2");
}

TEST_CASE("plot: NaN and infinity interrupt a curve, and do not stretch the axes") {
  const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  const std::string svg =
      plot::lines({{.x = {1, 2, 3, 4, 5, 6, 7}, .y = {1, 2, nan, 2, 1, -inf, 2}}});
  CHECK(count(svg, "<polyline") == 2);
  CHECK(labels(svg) == "1 1.2 1.4 1.6 1.8 2 1 2 3 4 5 6 7");
  for (const std::string& empty : {plot::lines({}), plot::lines({{.x = {1}, .y = {nan}}})}) {
    CHECK(count(empty, "<polyline") + count(empty, "<circle") + count(empty, "nan") == 0);
  }
}

TEST_CASE("plot: of many points each column of pixels keeps its extrema") {
  plot::Series series;
  for (int i = 0; i < 100'000; ++i) {
    series.x.push_back(i);
    series.y.push_back(i == 77'777 ? 900 : i % 10);
  }
  const std::string svg = plot::lines({series});
  CHECK(svg.size() < 20'000);
  CHECK(labels(svg) == "0 200 400 600 800 1000 0 20k 40k 60k 80k");
  const size_t places = svg.find("points=");
  const double top = 12, bottom = 294, peak = bottom - 0.9 * (bottom - top);
  CHECK(svg.find("," + std::to_string(peak).substr(0, 4), places) != std::string::npos);
}

TEST_CASE("plot: values that are all equal, or large") {
  CHECK(labels(plot::lines({{.x = {1, 2}, .y = {5, 5}}})) == "4.5 5 5.5 1 2");
  CHECK(labels(plot::lines({{.x = {1, 2}, .y = {5, 5 + 1e-15}}})) == "4.5 5 5.5 1 2");
  CHECK(labels(plot::lines({{.x = {0, 1}, .y = {0, 2.5e6}}})) == "0 500k 1M 1.5M 2M 2.5M 0 1");
}

TEST_CASE("plot: the largest and the least numbers have finite places") {
  constexpr double most = std::numeric_limits<double>::max();
  constexpr double least = std::numeric_limits<double>::denorm_min();
  for (const std::pair<double, double>& ends : {std::pair{-most, most},
                                                {-1.7e308, 1.7e308},
                                                {-1e308, 1e308},
                                                {most, most},
                                                {-most, -most},
                                                {0.0, most},
                                                {least, most},
                                                {least, 1e308},
                                                {0.0, least},
                                                {least, least},
                                                {1e-300, 1e-290},
                                                {1e-320, 2e-320}}) {
    for (const int64_t height : {120, 320, 1000}) {
      for (const bool log : {false, true}) {
        const auto low = ends.first, high = ends.second;
        CAPTURE(low);
        CAPTURE(high);
        CAPTURE(log);
        const plot::Axis axis{.log = log};
        const std::string svg =
            plot::lines({{.x = {low, high}, .y = {low, high}}, {.x = {1, 2}, .y = {high, low}}},
                        {.x = axis, .y = axis, .height = height});
        CHECK(count(svg, "nan") + count(svg, "inf") == 0);
        CHECK(svg.size() < 20'000);
      }
    }
  }
  CHECK(labels(plot::lines({{.x = {0, 1}, .y = {-1e308, 1e308}}})) ==
        "-1e308 -5e307 0 5e307 1e308 0 1");
  CHECK(labels(plot::lines({{.x = {0, 1}, .y = {least, 1e308}}}, {.y = {.log = true}})) ==
        "1e-254 1e-127 1 1e127 1e254 0 1");
}

TEST_CASE("plot: a heat map of any dtype, with a bar of colours") {
  const std::string svg =
      plot::heat_map(matrix({0, 1, 1, 0.5, 0, std::nan("")}, {2, 3}),
                     {.title = "Head 0", .x = {.label = "key"}, .y = {.label = "query"}});
  CHECK(labels(svg) == "Head 0 query key 0 1 2 0 1 0 0.2 0.4 0.6 0.8 1");
  CHECK(svg.find("fill=\"#08306b\" d=\"M1 0h2v1h-2z\"") != std::string::npos);
  CHECK(svg.find("fill=\"#b5b1a8\" d=\"M2 1h1v1h-1z\"") != std::string::npos);
  CHECK(plot::heat_map(tensor({{true, false}}, {.device = kCPU})).find("M0 0h1v1h-1z") !=
        std::string::npos);
  // Cells of 2 x 2 elements.
  CHECK(plot::heat_map(eye(256, {.device = kCPU})).find("M127 127h1v1h-1z") != std::string::npos);
}

TEST_CASE("plot: a heat map with names at its rows and columns") {
  const std::vector<std::string> pets{"cat", "dog"};
  const std::string svg = plot::heat_map(matrix({0, 1, 1, 0}, {2, 2}),
                                         {.x = {.label = "predicted", .names = pets},
                                          .y = {.label = "target", .names = {"c\u00e4t", "a & b"}},
                                          .cell = 3});
  CHECK(labels(svg) == "target predicted cat dog c\u00e4t a &amp; b 0 0.2 0.4 0.6 0.8 1");
  CHECK(count(svg, "rotate") == 0);
  // The middles of two columns, each 160 pixels wide.
  CHECK(count(svg, "<text x=\"127\" ") == 1);
  CHECK(count(svg, "<text x=\"287\" ") == 1);

  // Names that are wider than their columns are turned, and the figure is higher.
  std::vector<std::string> classes;
  for (int c = 0; c < 20; ++c) classes.push_back("class " + std::to_string(c));
  const Tensor values = eye(20, {.device = kCPU});
  const std::string turned = plot::heat_map(values, {.x = {.names = classes}, .size = 400});
  CHECK(count(turned, "rotate(-45 ") == 20);
  CHECK(turned.find(" height=\"507.5\"") != std::string::npos);  // 470 and 0.71 of 53

  CHECK(count(plot::heat_map(eye(128, {.device = kCPU})), "rotate") == 0);

  // Without room for all, every third; of cells of 2 x 2 elements, every name has a row.
  const std::string small = plot::heat_map(values, {.y = {.names = classes}, .size = 100});
  CHECK(labels(small).find("class 0 class 3 class 6") != std::string::npos);
  std::vector<std::string> many(256, "-");
  many[250] = "here";
  const std::string means =
      plot::heat_map(eye(256, {.device = kCPU}), {.y = {.names = many}, .size = 2560});
  CHECK(count(means, ">-</text>") == 127);
  CHECK(count(means, ">here</text>") == 1);
  CHECK(labels(plot::heat_map(matrix({0}, {1, 1}), {.y = {.names = {std::string(99, 'x')}}}))
            .find(std::string(24, 'x') + "... ") != std::string::npos);
}

TEST_CASE("plot: wrong calls") {
  const TemporaryFolder folder;
  expect_errors({
      {"ValueError: plot::heat_map: expected 3 names on the axis 'predicted', got 2",
       [] {
         plot::heat_map(matrix({1, 2, 3}, {1, 3}),
                        {.x = {.label = "predicted", .names = {"a", "b"}}});
       }},
      {"ValueError: plot::lines: expected as many x as y in 'a', got 2 and 1",
       [] {
         plot::lines({{.name = "a", .x = {1, 2}, .y = {1}}});
       }},
      {"ValueError: plot::lines: expected a figure of 200 x 120 pixels or more, got 10 x 320",
       [] { plot::lines({}, {.width = 10}); }},
      {"ShapeError: plot::heat_map: expected [rows, columns], neither of them 0, got [3]",
       [] { plot::heat_map(zeros({3}, {.device = kCPU})); }},
      {"ShapeError: plot::heat_map: expected [rows, columns], neither of them 0, got [0, 3]",
       [] {
         plot::heat_map(zeros({0, 3}, {.device = kCPU}));
       }},
      {"IoError: plot::save: cannot create '" + folder.file("none/a.svg") +
           "': No such file or directory",
       [&] { plot::save(folder.file("none/a.svg"), "<svg/>"); }},
  });
}

TEST_CASE("plot: text for a document") {
  CHECK(plot::escape("a<b> & \"c\"\n") == "a&lt;b&gt; &amp; &quot;c&quot;\n");
  CHECK(plot::escape("\xC3\xA4 \xF0\x9F\x98\x80") == "\xC3\xA4 \xF0\x9F\x98\x80");
  const std::string unknown = "\xEF\xBF\xBD";
  CHECK(plot::escape(std::string("a\0b\x1B", 4)) == "a" + unknown + "b" + unknown);
  // An incomplete, an overlong and a surrogate's encoding.
  CHECK(plot::escape("\xC3") == unknown);
  CHECK(plot::escape("\xC0\xAF") == unknown + unknown);
  CHECK(plot::escape("\xED\xA0\x80") == unknown + unknown + unknown);
}
