#include <sash/ops/norm/layer_norm.h>

#include "cases.h"

namespace sash::testing {
namespace {

constexpr double kEps = 1e-5;

// inputs: x, then weight and bias if wanted; `axes` trailing axes are normalised.
Array layer_norm_of(const Arrays& t, int axes, bool has_weight, bool has_bias) {
  const Array& x = t[0];
  Array rows = x;
  int64_t width = 1;
  for (int i = 1; i <= axes; ++i) width *= x.shape[x.shape.rank() - i];
  const int64_t count_of_rows = width == 0 ? 0 : count(x.shape) / width;
  for (int64_t row = 0; row < count_of_rows; ++row) {
    double* values = rows.values.data() + row * width;
    double mean = 0, variance = 0;
    for (int64_t i = 0; i < width; ++i) mean += values[i] / static_cast<double>(width);
    for (int64_t i = 0; i < width; ++i) {
      variance += (values[i] - mean) * (values[i] - mean) / static_cast<double>(width);
    }
    for (int64_t i = 0; i < width; ++i) values[i] = (values[i] - mean) / std::sqrt(variance + kEps);
  }
  const auto times = [](double a, double b) { return a * b; };
  const auto plus = [](double a, double b) { return a + b; };
  if (has_weight) rows = zip(rows, t[1], times);
  return has_bias ? zip(rows, t[has_weight ? 2 : 1], plus) : rows;
}

using Function = Tensor (*)(const Tensor&, const Shape&, const Tensor&, const Tensor&, double);

void add_case(OpTable& table, const std::string& kind, Function f, const InputSpec& x, int axes,
              bool has_weight, bool has_bias, Layout layout = contiguous) {
  Shape normalized;
  for (int i = x.shape.rank() - axes; i < x.shape.rank(); ++i) normalized.push_back(x.shape[i]);
  std::vector<InputSpec> inputs{x};
  if (has_weight) inputs.push_back({normalized, layout, 0.5, 2});
  if (has_bias) inputs.push_back({normalized, layout});
  table.push_back({
      .op = "layer_norm",
      .variant = kind + describe(x) + " over " + std::to_string(axes) +
                 (has_weight ? ", weight" : "") + (has_bias ? ", bias" : "") +
                 (layout == contiguous ? "" : " " + layout_name(layout)),
      .inputs = inputs,
      .run =
          [=](const Tensors& t) {
            return f(t[0], normalized, has_weight ? t[1] : Tensor(),
                     has_bias ? t[has_weight ? 2 : 1] : Tensor(), kEps);
          },
      .reference = [=](const Arrays& t) { return layer_norm_of(t, axes, has_weight, has_bias); },
      .tolerance32 = 3e-5,
      .half_rounds = kind.empty() ? 1.0 : 8,
      .half_gradient_rounds = kind.empty() ? 1.0 : 8,
  });
}

void add_cases(OpTable& table, const std::string& kind, Function f) {
  add_case(table, kind, f, {{3, 5}}, 1, true, true);
  add_case(table, kind, f, {{3, 5}}, 1, true, false);
  add_case(table, kind, f, {{3, 5}}, 1, false, true);
  add_case(table, kind, f, {{3, 5}}, 1, false, false);
  add_case(table, kind, f, {{7}}, 1, true, true);
  add_case(table, kind, f, {{2, 3, 4}}, 2, true, true);
  add_case(table, kind, f, {{2, 3, 4}, heads}, 1, true, true);
  add_case(table, kind, f, {{4, 3}, transposed}, 1, true, true, sliced);
  add_case(table, kind, f, {{3, 4}, padded}, 1, true, true);
  add_case(table, kind, f, {{3, 4}, expanded}, 1, true, true);
  for (const int64_t width : {63, 64, 65, 130}) {
    add_case(table, kind, f, {{5, width}}, 1, true, true);
  }
  add_case(table, kind, f, {{130, 9}}, 1, true, true);
  add_case(table, kind, f, {{2, 1030}}, 1, true, true);
  add_case(table, kind, f, {{0, 3}}, 1, true, true);
}

}  // namespace

void add_layer_norm(OpTable& table) {
  add_cases(table, "", layer_norm);
  add_cases(table, "composite, ", composite::layer_norm);
  table.push_back({
      .op = "layer_norm",
      .variant = "timed [1024, 1024]",
      .inputs = {{{1024, 1024}}, {{1024}}, {{1024}}},
      .run = [](const Tensors& t) { return layer_norm(t[0], {1024}, t[1], t[2]); },
      .reference = [](const Arrays& t) { return layer_norm_of(t, 1, true, true); },
      .dtypes = {DType::float32},
      .tolerance32 = 3e-5,
      .timed = true,
      .operations = 8.0 * 1024 * 1024,
      .bytes = 8.0 * 1024 * 1024,
  });
}

}  // namespace sash::testing
