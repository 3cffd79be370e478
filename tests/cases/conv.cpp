#include <sash/ops/conv/conv.h>
#include <sash/ops/conv/pool.h>

#include "cases.h"

namespace sash::testing {
namespace {

/// x as [N, C, H, W], whatever number of axes and whether with a batch.
Array planes(Array x, int axes) {
  if (x.shape.rank() == axes + 1) x.shape.insert(0, 1);
  if (axes == 1) x.shape.insert(2, 1);
  return x;
}

/// The shape of a result [N, C, H, W] for inputs like `x`.
Shape like(Shape shape, const Array& x, int axes) {
  if (axes == 1) shape.erase(2);
  if (x.shape.rank() == axes + 1) shape.erase(0);
  return shape;
}

int64_t windows(int64_t extent, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation) {
  return (extent + 2 * padding - dilation * (kernel - 1) - 1) / stride + 1;
}

struct Sliding {
  HeightWidth stride = 1, padding = 0, dilation = 1;
  int64_t groups = 1;

  int64_t row(int64_t u, int64_t i) const {
    return u * stride.height + i * dilation.height - padding.height;
  }
  int64_t column(int64_t v, int64_t j) const {
    return v * stride.width + j * dilation.width - padding.width;
  }
};

bool inside(const Array& x, int64_t row, int64_t column) {
  return row >= 0 && row < x.shape[2] && column >= 0 && column < x.shape[3];
}

Array convolution(const Array& given, const Array& given_weight, const Array* bias, Sliding s,
                  int axes) {
  const Array x = planes(given, axes);
  Array w = given_weight;
  if (axes == 1)
    w.shape.insert(2, 1),
        s = {{1, s.stride.width}, {0, s.padding.width}, {1, s.dilation.width}, s.groups};
  const int64_t out = w.shape[0], within = w.shape[1];
  const Shape shape{
      x.shape[0], out,
      windows(x.shape[2], w.shape[2], s.stride.height, s.padding.height, s.dilation.height),
      windows(x.shape[3], w.shape[3], s.stride.width, s.padding.width, s.dilation.width)};
  Array y = generate(shape, [&](const Index& at) {
    double sum = bias ? bias->values[static_cast<size_t>(at[1])] : 0;
    const int64_t first = at[1] / (out / s.groups) * within;
    for_each_index({within, w.shape[2], w.shape[3]}, [&](const Index& k) {
      const int64_t row = s.row(at[2], k[1]), column = s.column(at[3], k[2]);
      if (!inside(x, row, column)) return;
      sum += w[{at[1], k[0], k[1], k[2]}] * x[{at[0], first + k[0], row, column}];
    });
    return sum;
  });
  y.shape = like(shape, given, axes);
  return y;
}

std::string describe(const Sliding& s) {
  const auto both = [](HeightWidth pair) {
    return std::to_string(pair.height) + "x" + std::to_string(pair.width);
  };
  return "stride " + both(s.stride) + ", padding " + both(s.padding) + ", dilation " +
         both(s.dilation) + ", groups " + std::to_string(s.groups);
}

void add_conv(OpTable& table, int axes, const InputSpec& x, const InputSpec& weight, bool bias,
              const Sliding& s = {}) {
  std::vector<InputSpec> inputs{x, weight};
  if (bias) inputs.push_back({{weight.shape[0]}});
  table.push_back({
      .op = axes == 1 ? "conv1d" : "conv2d",
      .variant = describe(x) + " by " + describe(weight) + (bias ? ", bias, " : ", ") + describe(s),
      .inputs = inputs,
      .run = [=](const Tensors& t) -> Tensor {
        const Tensor b = bias ? t[2] : Tensor();
        if (axes == 2) {
          return conv2d(t[0], t[1], b,
                        {.stride = s.stride,
                         .padding = s.padding,
                         .dilation = s.dilation,
                         .groups = s.groups});
        }
        return conv1d(t[0], t[1], b,
                      {.stride = s.stride.width,
                       .padding = s.padding.width,
                       .dilation = s.dilation.width,
                       .groups = s.groups});
      },
      .reference =
          [=](const Arrays& t) { return convolution(t[0], t[1], bias ? &t[2] : nullptr, s, axes); },
      .half_rounds = 2,
      .half_gradient_rounds = 3,
      .half_gradient_scale = 4,
  });
}

Array pooled(const Array& given, HeightWidth kernel, Sliding s, bool greatest, int axes) {
  const Array x = planes(given, axes);
  if (axes == 1) kernel.height = 1, s.stride.height = 1, s.padding.height = 0;
  const Shape shape{x.shape[0], x.shape[1],
                    windows(x.shape[2], kernel.height, s.stride.height, s.padding.height, 1),
                    windows(x.shape[3], kernel.width, s.stride.width, s.padding.width, 1)};
  Array y = generate(shape, [&](const Index& at) {
    double sum = 0, best = -kInfinity;
    for_each_index({kernel.height, kernel.width}, [&](const Index& k) {
      const int64_t row = s.row(at[2], k[0]), column = s.column(at[3], k[1]);
      if (!inside(x, row, column)) return;
      const double value = x[{at[0], at[1], row, column}];
      sum += value;
      if (std::isnan(value) || value > best) best = value;
    });
    return greatest ? best : sum / static_cast<double>(kernel.height * kernel.width);
  });
  y.shape = like(shape, given, axes);
  return y;
}

void add_pool(OpTable& table, int axes, bool greatest, InputSpec x, HeightWidth kernel,
              std::optional<HeightWidth> stride = {}, HeightWidth padding = 0) {
  x.distinct = greatest && x.elements.empty();
  const Sliding s{.stride = stride.value_or(kernel), .padding = padding};
  table.push_back({
      .op = std::string(greatest ? "max" : "avg") + "_pool" + (axes == 1 ? "1d" : "2d"),
      .variant = std::to_string(kernel.height) + "x" + std::to_string(kernel.width) + " of " +
                 describe(x) + ", " + describe(s) + (x.elements.empty() ? "" : ", NaN and ties"),
      .inputs = {x},
      .run =
          [=](const Tensors& t) {
            const Pool2dOptions two{.stride = stride, .padding = padding};
            Pool1dOptions one{.padding = padding.width};
            if (stride) one.stride = stride->width;
            if (axes == 1) {
              return greatest ? max_pool1d(t[0], kernel.width, one)
                              : avg_pool1d(t[0], kernel.width, one);
            }
            return greatest ? max_pool2d(t[0], kernel, two) : avg_pool2d(t[0], kernel, two);
          },
      .reference = [=](const Arrays& t) { return pooled(t[0], kernel, s, greatest, axes); },
      .differentiable = x.elements.empty(),
  });
}

}  // namespace

void add_conv(OpTable& table) {
  add_conv(table, 2, {{1, 1, 3, 3}}, {{1, 1, 2, 2}}, true);
  add_conv(table, 2, {{2, 3, 5, 4}}, {{4, 3, 3, 3}}, true, {.padding = 1});
  add_conv(table, 2, {{2, 3, 6, 5}}, {{2, 3, 3, 2}}, false, {.stride = {2, 1}, .padding = {1, 0}});
  add_conv(table, 2, {{1, 2, 7, 6}}, {{3, 2, 2, 3}}, true,
           {.stride = 2, .padding = 2, .dilation = {3, 2}});
  add_conv(table, 2, {{2, 4, 4, 4}}, {{6, 2, 3, 3}}, true, {.padding = 1, .groups = 2});
  add_conv(table, 2, {{2, 3, 5, 4}}, {{3, 1, 3, 3}}, true,
           {.stride = 3, .padding = 1, .groups = 3});
  add_conv(table, 2, {{3, 4, 5}}, {{2, 3, 1, 1}}, true);
  add_conv(table, 2, {{2, 3, 4, 5}, heads}, {{2, 3, 2, 2}, transposed}, true);
  add_conv(table, 2, {{2, 2, 4, 5}, sliced}, {{3, 2, 2, 2}, sliced}, false, {.padding = 1});
  add_conv(table, 2, {{0, 2, 4, 4}}, {{3, 2, 2, 2}}, true);
  add_conv(table, 2, {{3, 8, 17, 15}}, {{16, 8, 3, 3}}, true, {.padding = 1});
  add_conv(table, 2, {{1, 2, 2, 70}}, {{33, 2, 2, 5}}, true, {.padding = {0, 2}});
  // Lines of one and two vectors of filters, the last one cut; rows without whole windows, and with
  // more of them than are computed together; several items at a time.
  add_conv(table, 2, {{9, 2, 4, 2}}, {{16, 2, 3, 3}}, true, {.padding = 1});
  add_conv(table, 2, {{3, 2, 3, 19}}, {{30, 2, 3, 3}}, true, {.padding = 1});
  add_conv(table, 2, {{2, 2, 2, 34}}, {{48, 2, 1, 3}}, false,
           {.stride = {1, 2}, .padding = {0, 1}});
  add_conv(table, 2, {{2, 4, 5, 5}}, {{64, 2, 3, 2}}, true,
           {.stride = 2, .padding = {2, 1}, .dilation = {1, 2}, .groups = 2});
  add_conv(table, 2, {{2, 9, 4, 5}, sliced}, {{16, 9, 3, 3}, transposed}, true, {.padding = 2});
  add_conv(table, 2, {{1, 1, 1, 530}}, {{16, 1, 1, 3}}, false, {.padding = {0, 1}});
  // Few filters: all rows as one line.
  add_conv(table, 2, {{2, 2, 3, 40}, heads}, {{17, 2, 3, 3}}, true, {.padding = 1});
  add_conv(table, 2, {{2, 4, 3, 260}}, {{4, 1, 2, 3}}, true,
           {.padding = {1, 2}, .dilation = {1, 2}, .groups = 4});
  // So many channels that the gradient of the weight reads windows in place for few filters too.
  add_conv(table, 2, {{2, 16, 5, 4}}, {{3, 16, 3, 2}}, true,
           {.padding = {1, 0}, .dilation = {1, 2}});
  add_conv(table, 1, {{1, 17, 9}}, {{2, 17, 3}}, false, {.padding = 2});
  add_conv(table, 1, {{2, 3, 7}}, {{4, 3, 3}}, true);
  add_conv(table, 1, {{2, 4, 9}}, {{2, 2, 3}}, false,
           {.stride = 2, .padding = 2, .dilation = 2, .groups = 2});
  add_conv(table, 1, {{3, 65}}, {{5, 3, 4}}, true, {.padding = 3});
  add_conv(table, 1, {{2, 3, 8}, transposed}, {{3, 1, 5}}, true, {.padding = 2, .groups = 3});

  const InputSpec hard{
      .shape = {1, 1, 3, 4},
      .elements = {1, 1, kNaN, 2, -kInfinity, 1, 0, 3, -kInfinity, -kInfinity, 3, 3}};
  for (const bool greatest : {false, true}) {
    add_pool(table, 2, greatest, {{2, 3, 4, 6}}, 2);
    add_pool(table, 2, greatest, {{2, 2, 5, 7}}, {2, 3});
    add_pool(table, 2, greatest, {{1, 2, 5, 6}}, 3, 2, 1);
    add_pool(table, 2, greatest, {{3, 6, 5}}, {3, 2}, HeightWidth(1, 2), {1, 0});
    add_pool(table, 2, greatest, {{2, 3, 4, 4}, heads}, 2);
    add_pool(table, 2, greatest, {{2, 2, 4, 5}, sliced}, 2, 1);
    add_pool(table, 2, greatest, {{0, 2, 4, 4}}, 2);
    add_pool(table, 2, greatest, hard, 2, 1);
    add_pool(table, 1, greatest, {{2, 3, 9}}, 3);
    add_pool(table, 1, greatest, {{3, 65}}, 4, 3, 2);
    add_pool(table, 1, greatest, {{2, 3, 8}, transposed}, 2, 1, 1);
  }
}

}  // namespace sash::testing
