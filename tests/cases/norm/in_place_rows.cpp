#include <sash/ops/linalg/matmul_in_place.h>
#include <sash/ops/norm/layer_norm_in_place.h>
#include <sash/ops/norm/softmax_in_place.h>

#include "../cases.h"

namespace sash::testing {
namespace {

// A result of another op, with the elements and the layout of x, so that it can be written over.
Tensor writable(const Tensor& x, Layout layout) {
  if (layout == Layout::transposed) return x.mT().clone().mT();
  if (layout == Layout::heads) return x.transpose(1, 2).clone().transpose(1, 2);
  return x.clone();
}

void add_matmul_(OpTable& table) {
  const std::vector<std::pair<InputSpec, InputSpec>> products = {
      {{{3, 4}}, {{4, 4}}},
      {{{4}}, {{4, 4}}},
      {{{3, 4}}, {{4, 4}, transposed}},
      {{{3, 4}}, {{4, 4}, sliced}},
      {{{2, 3, 4}}, {{4, 4}}},
      {{{3, 4}, transposed}, {{4, 4}}},
      {{{2, 3, 2, 4}, heads}, {{4, 4}}},
      {{{65, 33}}, {{33, 33}}},
      {{{3, 1030}}, {{1030, 1030}}},
      {{{0, 3}}, {{3, 3}}},
      {{{2, 0}}, {{0, 0}}},
  };
  for (const auto& [x, w] : products) {
    const bool large = x.shape.back() > 1000;
    for (const bool turned : {false, true}) {
      table.push_back({
          .op = "matmul_",
          .variant = describe(x) + " and " + describe(w) + (turned ? ", transposed" : ""),
          .inputs = {x, w},
          .run =
              [=, layout = x.layout](const Tensors& t) {
                return matmul_(writable(t[0], layout), turned ? t[1].mT() : t[1]);
              },
          .reference =
              [=](const Arrays& t) { return matmul(t[0], turned ? transpose(t[1], 0, 1) : t[1]); },
          .tolerance32 = 1e-4,
          .tolerance64 = 1e-11,
          .gradient32 = 2e-4,
          .differentiable = !large,
      });
    }
  }
}

void add_softmax_(OpTable& table) {
  const std::vector<std::pair<InputSpec, int64_t>> rows = {
      {{{5}}, 0},
      {{{2, 7}}, -1},
      {{{4, 3}}, 0},
      {{{2, 3, 4}}, 1},
      {{.shape = {2, 5}, .low = -80, .high = 80}, -1},
      {{{65, 64}}, -1},
      {{{3, 1030}}, -1},
      {{{2, 2100}}, -1},
      {{{0, 3}}, -1},
      {{{3, 0}}, -1},
      {{{4, 5}, transposed}, -1},
      {{{2, 3, 4}, heads}, -1},
  };
  for (const auto& [x, axis] : rows) {
    table.push_back({
        .op = "softmax_",
        .variant =
            "axis " + std::to_string(axis) + " of " + describe(x) + (x.high > 10 ? ", large" : ""),
        .inputs = {x},
        .run = [along = axis, layout = x.layout](
                   const Tensors& t) { return softmax_(writable(t[0], layout), along); },
        .reference =
            [along = axis](const Arrays& t) {
              return map_lines(t[0], positive(along, t[0].shape.rank()), softmax_line);
            },
        .half_gradient_rounds = 2,
        .half_gradient_scale = 1,
    });
  }
  const double inf = -kInfinity;
  table.push_back({
      .op = "softmax_",
      .variant = "masked rows",
      .inputs = {{.shape = {3, 3}, .elements = {1, inf, 2, inf, inf, inf, 3, inf, inf}}},
      .run = [](const Tensors& t) { return softmax_(t[0].clone()); },
      .reference = [](const Arrays& t) { return map_lines(t[0], 1, softmax_line); },
      .differentiable = false,
  });
}

// dp = d_out v', (dp - sum(p dp)) p.
Array softmax_backward_of(const Arrays& t) {
  const Array dp = matmul(t[1], transpose(t[2], -2, -1));
  const auto times = [](double a, double b) { return a * b; };
  const Array products = zip(t[0], dp, times);
  const int last = t[0].shape.rank() - 1;
  const Array sums = map_lines(products, last, [](std::vector<double> row) {
    double total = 0;
    for (const double x : row) total += x;
    for (double& x : row) x = total;
    return row;
  });
  return zip(zip(dp, sums, [](double a, double b) { return a - b; }), t[0], times);
}

void add_softmax_backward_(OpTable& table) {
  const auto add = [&](const InputSpec& p, const InputSpec& g, const InputSpec& v) {
    table.push_back({
        .op = "softmax_backward",
        .variant = "composite, " + describe(p) + ", " + describe(g) + ", " + describe(v),
        .inputs = {p, g, v},
        .run = [](const Tensors& t) { return composite::softmax_backward(t[0], t[1], t[2]); },
        .reference = softmax_backward_of,
        .tolerance32 = 1e-4,
        .gradient32 = 1e-3,
        .half_rounds = 6,
        .half_gradient_rounds = 12,
        .half_gradient_scale = 20,
    });
    table.push_back({
        .op = "softmax_backward_",
        .variant = describe(p) + ", " + describe(g) + ", " + describe(v),
        .inputs = {p, g, v},
        .run =
            [layout = p.layout](const Tensors& t) {
              return softmax_backward_(writable(t[0], layout), t[1], t[2]);
            },
        .reference = softmax_backward_of,
        .tolerance32 = 1e-4,
        .gradient32 = 1e-3,
        .half_rounds = 4,
        .half_gradient_rounds = 12,
        .half_gradient_scale = 20,
    });
  };
  const auto probabilities = [](const Shape& shape, Layout layout = contiguous) {
    return InputSpec{.shape = shape, .layout = layout, .low = 0, .high = 1};
  };
  add(probabilities({3, 4}), {{3, 2}}, {{4, 2}});
  add(probabilities({2, 3, 4}), {{2, 3, 2}}, {{2, 4, 2}});
  add(probabilities({2, 3, 4}), {{3, 2}}, {{1, 4, 2}});
  add(probabilities({3, 4}, transposed), {{3, 2}, transposed}, {{4, 2}, padded});
  add(probabilities({2, 3, 2, 4}, heads), {{2, 3, 2, 2}, heads}, {{2, 3, 4, 2}, heads});
  add(probabilities({5, 65}), {{5, 17}}, {{65, 17}});
  add(probabilities({2, 2100}), {{2, 3}}, {{2100, 3}});
  add(probabilities({0, 3}), {{0, 2}}, {{3, 2}});
  add(probabilities({3, 2}), {{3, 0}}, {{2, 0}});
}

Array normalized(const Arrays& t, int axes, bool has_weight, bool has_bias) {
  Array rows = t[0];
  int64_t width = 1;
  for (int i = 1; i <= axes; ++i) width *= rows.shape[rows.shape.rank() - i];
  const int64_t rows_count = width == 0 ? 0 : count(rows.shape) / width;
  const auto n = static_cast<double>(width);
  for (int64_t row = 0; row < rows_count; ++row) {
    double* x = rows.values.data() + row * width;
    double mean = 0, variance = 0;
    for (int64_t i = 0; i < width; ++i) mean += x[i] / n;
    for (int64_t i = 0; i < width; ++i) variance += (x[i] - mean) * (x[i] - mean) / n;
    for (int64_t i = 0; i < width; ++i) x[i] = (x[i] - mean) / std::sqrt(variance + 1e-6);
  }
  if (has_weight) rows = zip(rows, t[1], [](double a, double b) { return a * b; });
  if (!has_bias) return rows;
  return zip(rows, t[has_weight ? 2 : 1], [](double a, double b) { return a + b; });
}

void add_layer_norm_(OpTable& table) {
  const auto add = [&](const InputSpec& x, int axes, bool has_weight, bool has_bias) {
    Shape shape;
    for (int i = x.shape.rank() - axes; i < x.shape.rank(); ++i) shape.push_back(x.shape[i]);
    std::vector<InputSpec> inputs{x};
    if (has_weight) inputs.push_back({shape, contiguous, 0.5, 2});
    if (has_bias) inputs.push_back({shape});
    table.push_back({
        .op = "layer_norm_",
        .variant = describe(x) + " over " + std::to_string(axes) + (has_weight ? ", weight" : "") +
                   (has_bias ? ", bias" : ""),
        .inputs = inputs,
        .run =
            [=, layout = x.layout](const Tensors& t) {
              return layer_norm_(writable(t[0], layout), shape, has_weight ? t[1] : Tensor(),
                                 has_bias ? t[has_weight ? 2 : 1] : Tensor(), 1e-6);
            },
        .reference = [=](const Arrays& t) { return normalized(t, axes, has_weight, has_bias); },
        .tolerance32 = 3e-5,
        .gradient32 = 2e-4,
        .half_gradient_rounds = 6,
        .half_gradient_scale = 4,
    });
  };
  add({{3, 5}}, 1, false, false);
  add({{3, 5}}, 1, true, true);
  add({{3, 5}}, 1, true, false);
  add({{3, 5}}, 1, false, true);
  add({{7}}, 1, false, false);
  add({{2, 3, 4}}, 2, false, false);
  add({{2, 3, 4}}, 2, true, true);
  add({{2, 3, 4}, heads}, 1, false, false);
  add({{4, 3}, transposed}, 1, false, false);
  add({{5, 65}}, 1, false, false);
  add({{2, 1030}}, 1, true, true);
  add({{2, 2100}}, 1, false, false);
  add({{0, 3}}, 1, false, false);
  add({{3, 0}}, 1, true, true);
  for (const Shape& shape : {Shape{2, 0}, Shape{0, 2}, Shape{2, 3, 0}, Shape{2, 0, 3}}) {
    add({shape}, 2, false, false);
    add({shape}, 2, true, true);
  }
}

}  // namespace

void add_in_place_rows(OpTable& table) {
  add_matmul_(table);
  add_softmax_(table);
  add_softmax_backward_(table);
  add_layer_norm_(table);
}

}  // namespace sash::testing
