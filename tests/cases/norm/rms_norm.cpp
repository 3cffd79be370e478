#include <sash/ops/norm/rms_norm.h>

#include "../cases.h"

namespace sash::testing {
namespace {

constexpr double kEps = 1e-6;

enum class Weight { none, plain, unit_offset };

// t: x, then the weight if there is one; `axes` trailing axes are normalised.
Array rms_norm_of(const Arrays& t, int axes, Weight weight) {
  Array rows = t[0];
  int64_t width = 1;
  for (int i = 1; i <= axes; ++i) width *= rows.shape[rows.shape.rank() - i];
  const int64_t height = width == 0 ? 0 : static_cast<int64_t>(rows.values.size()) / width;
  for (int64_t row = 0; row < height; ++row) {
    double* const values = rows.values.data() + row * width;
    double squares = 0;
    for (int64_t i = 0; i < width; ++i) squares += values[i] * values[i];
    const double rms = std::sqrt(squares / static_cast<double>(width) + kEps);
    for (int64_t i = 0; i < width; ++i) values[i] /= rms;
  }
  if (weight == Weight::none) return rows;
  const double offset = weight == Weight::unit_offset ? 1 : 0;
  return zip(rows, t[1], [=](double a, double w) { return a * (w + offset); });
}

using Function = Tensor (*)(const Tensor&, const Shape&, const Tensor&, const RMSNormOptions&);

void add_case(OpTable& table, const std::string& kind, Function f, const InputSpec& x, int axes,
              Weight weight, Layout layout = contiguous) {
  Shape normalized;
  for (int i = x.shape.rank() - axes; i < x.shape.rank(); ++i) normalized.push_back(x.shape[i]);
  std::vector<InputSpec> inputs{x};
  if (weight != Weight::none) inputs.push_back({normalized, layout, 0.5, 2});
  const char* const names[] = {"", ", weight", ", 1 + weight"};
  table.push_back({
      .op = "rms_norm",
      .variant = kind + describe(x) + " over " + std::to_string(axes) +
                 names[static_cast<int>(weight)] +
                 (layout == contiguous ? "" : " " + layout_name(layout)),
      .inputs = inputs,
      .run =
          [=](const Tensors& t) {
            const bool offset = weight == Weight::unit_offset;
            return f(t[0], normalized, t.size() > 1 ? t[1] : Tensor(),
                     {.eps = kEps, .unit_offset = offset});
          },
      .reference = [=](const Arrays& t) { return rms_norm_of(t, axes, weight); },
      .half_rounds = kind.empty() ? 1.0 : 8,
      .half_gradient_rounds = kind.empty() ? 1.0 : 8,
  });
}

void add_cases(OpTable& table, const std::string& kind, Function f) {
  using enum Weight;
  for (const Weight weight : {none, plain, unit_offset}) {
    add_case(table, kind, f, {{3, 5}}, 1, weight);
    add_case(table, kind, f, {{5, 64}}, 1, weight);
  }
  add_case(table, kind, f, {{7}}, 1, plain);
  add_case(table, kind, f, {{2, 3, 4}}, 2, unit_offset);
  add_case(table, kind, f, {{2, 3, 2, 4}, heads}, 1, plain);
  add_case(table, kind, f, {{4, 3}, transposed}, 1, unit_offset, sliced);
  add_case(table, kind, f, {{3, 4}, padded}, 1, plain);
  add_case(table, kind, f, {{3, 4}, expanded}, 1, plain);
  for (const int64_t width : {63, 65, 130, 512}) add_case(table, kind, f, {{5, width}}, 1, plain);
  add_case(table, kind, f, {{130, 9}}, 1, unit_offset);
  add_case(table, kind, f, {{70, 48}}, 1, plain);
  for (const int64_t width : {1030, 1032}) add_case(table, kind, f, {{2, width}}, 1, unit_offset);
  add_case(table, kind, f, {{0, 3}}, 1, plain);
  add_case(table, kind, f, {{3, 0}}, 1, plain);
}

// inputs: branch, residual, weight.
void add_sum_case(OpTable& table, const InputSpec& x, Weight weight) {
  std::vector<InputSpec> inputs{x, {x.shape}};
  if (weight != Weight::none) inputs.push_back({{x.shape.back()}, contiguous, 0.5, 2});
  const char* const names[] = {"", ", weight", ", 1 + weight"};
  table.push_back({
      .op = "add_rms_norm",
      .variant = describe(x) + names[static_cast<int>(weight)],
      .inputs = inputs,
      .run = [=](const Tensors& t) -> Tensors {
        const SumAndNorm y =
            add_rms_norm(t[0], t[1], t.size() > 2 ? t[2] : Tensor(),
                         {.eps = kEps, .unit_offset = weight == Weight::unit_offset});
        return {y.sum, y.norm};
      },
      .reference = [=](const Arrays& t) -> Arrays {
        Arrays norm{zip(t[0], t[1], [](double a, double b) { return a + b; })};
        if (t.size() > 2) norm.push_back(t[2]);
        return {norm[0], rms_norm_of(norm, 1, weight)};
      },
      .half_rounds = 8,
      .half_gradient_rounds = 8,
  });
}

}  // namespace

void add_rms_norm(OpTable& table) {
  add_cases(table, "", rms_norm);
  add_cases(table, "composite, ", composite::rms_norm);
  add_sum_case(table, {{3, 5}}, Weight::none);
  add_sum_case(table, {{3, 5}}, Weight::plain);
  add_sum_case(table, {{2, 3, 4}}, Weight::unit_offset);
  add_sum_case(table, {{4, 3}, transposed}, Weight::plain);
  add_sum_case(table, {{3, 4}, expanded}, Weight::plain);
  add_sum_case(table, {{130, 9}}, Weight::plain);
  add_sum_case(table, {{5, 136}}, Weight::unit_offset);
  add_sum_case(table, {{2, 1032}}, Weight::plain);
  add_sum_case(table, {{0, 3}}, Weight::plain);
  table.push_back({
      .op = "rms_norm",
      .variant = "timed [1024, 1024]",
      .inputs = {{{1024, 1024}}, {{1024}}},
      .run = [](const Tensors& t) { return rms_norm(t[0], {1024}, t[1]); },
      .reference = [](const Arrays& t) { return rms_norm_of(t, 1, Weight::plain); },
      .dtypes = {DType::float32},
      .timed = true,
      .operations = 4.0 * 1024 * 1024,
      .bytes = 8.0 * 1024 * 1024,
  });
}

}  // namespace sash::testing
