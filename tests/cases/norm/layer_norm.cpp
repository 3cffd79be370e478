#include <sash/ops/norm/dropout_add_layer_norm.h>
#include <sash/ops/norm/layer_norm.h>
#include <sash/tensor/random.h>

#include "../cases.h"

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

// inputs: branch, residual, weight and bias if wanted.
void add_sum_case(OpTable& table, const InputSpec& x, double p, bool affine) {
  constexpr uint64_t kSeed = 77;
  std::vector<InputSpec> inputs{x, {x.shape}};
  const Shape row{x.shape.back()};
  if (affine) inputs.insert(inputs.end(), {{row, contiguous, 0.5, 2}, {row}});
  const auto reference = [=](const Arrays& t) -> Arrays {
    Array sum = t[1];
    for (size_t i = 0; i < sum.values.size(); ++i) {
      const bool kept = p < 1 && random_word(kSeed, i) >= p * 4294967296.0;
      if (kept) sum.values[i] += t[0].values[i] / (1 - p);
    }
    Arrays norm{sum};
    norm.insert(norm.end(), t.begin() + 2, t.end());
    return {sum, layer_norm_of(norm, 1, affine, affine)};
  };
  const std::string variant =
      "p " + std::to_string(p).substr(0, 4) + ", " + describe(x) + (affine ? ", weight, bias" : "");
  for (const bool fused : {true, false}) {
    table.push_back({
        .op = "dropout_add_layer_norm",
        .variant = (fused ? "" : "composite, ") + variant,
        .inputs = inputs,
        .run = [=](const Tensors& t) -> Tensors {
          manual_seed(kSeed);
          const Tensor weight = affine ? t[2] : Tensor(), bias = affine ? t[3] : Tensor();
          const SumAndNorm y = fused ? dropout_add_layer_norm(t[0], t[1], weight, bias, p, kEps)
                                     : composite::dropout_add_layer_norm(
                                           t[0], t[1], weight, bias, p, kEps,
                                           next_philox(t[0].device(), p == 0 ? 0 : t[0].numel()));
          return {y.sum, y.norm};
        },
        .reference = reference,
        .tolerance32 = 3e-5,
        .half_rounds = 8,
        .half_gradient_rounds = 8,
    });
  }
}

void add_sum_cases(OpTable& table) {
  for (const double p : {0.0, 0.25, 1.0}) add_sum_case(table, {{3, 5}}, p, true);
  add_sum_case(table, {{2, 3, 4}}, 0.25, false);
  add_sum_case(table, {{4, 3}, transposed}, 0.25, true);
  add_sum_case(table, {{3, 4}, expanded}, 0.25, true);
  add_sum_case(table, {{130, 9}}, 0.25, true);
  add_sum_case(table, {{5, 130}}, 0.25, true);
  for (const InputSpec& x : {InputSpec{{2, 1030}}, InputSpec{{11, 264}}, InputSpec{{3, 2304}}}) {
    add_sum_case(table, x, 0.25, true);
  }
  add_sum_case(table, {{0, 3}}, 0.25, true);
}

}  // namespace

void add_layer_norm(OpTable& table) {
  add_cases(table, "", layer_norm);
  add_cases(table, "composite, ", composite::layer_norm);
  add_case(table, "", layer_norm, {{11, 264}}, 1, true, true);
  add_case(table, "", layer_norm, {{3, 2304}}, 1, true, true);
  add_sum_cases(table);
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
