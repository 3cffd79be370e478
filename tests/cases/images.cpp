// Ops that change the size of images.
#include <sash/ops/conv/conv.h>
#include <sash/ops/conv/interpolate.h>
#include <sash/ops/conv/pool.h>

#include <algorithm>

#include "cases.h"

namespace sash::testing {
namespace {

std::string both(HeightWidth pair) {
  return std::to_string(pair.height) + "x" + std::to_string(pair.width);
}

/// Each element of x adds its multiple of the kernel to the result.
Array transposed_convolution(const Array& x, const Array& w, const Array& bias,
                             const ConvTranspose2dOptions& o) {
  const auto extent = [](int64_t n, int64_t kernel, int64_t stride, int64_t padding,
                         int64_t dilation, int64_t more) {
    return (n - 1) * stride - 2 * padding + dilation * (kernel - 1) + more + 1;
  };
  const int64_t out = w.shape[1] * o.groups, within = x.shape[1] / o.groups;
  Array y({x.shape[0], out,
           extent(x.shape[2], w.shape[2], o.stride.height, o.padding.height, o.dilation.height,
                  o.output_padding.height),
           extent(x.shape[3], w.shape[3], o.stride.width, o.padding.width, o.dilation.width,
                  o.output_padding.width)});
  for_each_index(y.shape, [&](const Index& at) { y[at] = bias[{at[1]}]; });
  for_each_index(x.shape, [&](const Index& at) {
    for_each_index({w.shape[1], w.shape[2], w.shape[3]}, [&](const Index& k) {
      const int64_t row = at[2] * o.stride.height + k[1] * o.dilation.height - o.padding.height;
      const int64_t column = at[3] * o.stride.width + k[2] * o.dilation.width - o.padding.width;
      if (row < 0 || row >= y.shape[2] || column < 0 || column >= y.shape[3]) return;
      const int64_t channel = at[1] / within * w.shape[1] + k[0];
      y[{at[0], channel, row, column}] += x[at] * w[{at[1], k[0], k[1], k[2]}];
    });
  });
  return y;
}

void add_transposed(OpTable& table, const InputSpec& x, const InputSpec& weight,
                    const ConvTranspose2dOptions& o = {}) {
  table.push_back({
      .op = "conv_transpose2d",
      .variant = describe(x) + " by " + describe(weight) + ", stride " + both(o.stride) +
                 ", padding " + both(o.padding) + " and " + both(o.output_padding) + ", dilation " +
                 both(o.dilation) + ", groups " + std::to_string(o.groups),
      .inputs = {x, weight, {{weight.shape[1] * o.groups}}},
      .run = [=](const Tensors& t) { return conv_transpose2d(t[0], t[1], t[2], o); },
      .reference =
          [=](const Arrays& t) {
            Array in = t[0];
            const bool single = in.shape.rank() == 3;
            if (single) in.shape.insert(0, 1);
            Array y = transposed_convolution(in, t[1], t[2], o);
            if (single) y.shape.erase(0);
            return y;
          },
      .half_rounds = 2,
      .half_gradient_rounds = 3,
      .half_gradient_scale = 4,
  });
}

/// The mean of x over rows and columns [begin, end).
double mean_of(const Array& x, const Index& at, int64_t top, int64_t bottom, int64_t left,
               int64_t right) {
  double sum = 0;
  for (int64_t i = top; i < bottom; ++i) {
    for (int64_t j = left; j < right; ++j) {
      sum += x[replaced(replaced(at, at.rank() - 2, i), at.rank() - 1, j)];
    }
  }
  return sum / static_cast<double>((bottom - top) * (right - left));
}

void add_adaptive(OpTable& table, const InputSpec& x, HeightWidth size) {
  const auto begin = [](int64_t i, int64_t extent, int64_t parts) { return i * extent / parts; };
  const auto end = [](int64_t i, int64_t extent, int64_t parts) {
    return ((i + 1) * extent + parts - 1) / parts;
  };
  table.push_back({
      .op = "adaptive_avg_pool2d",
      .variant = describe(x) + " to " + both(size),
      .inputs = {x},
      .run = [=](const Tensors& t) { return adaptive_avg_pool2d(t[0], size); },
      .reference =
          [=](const Arrays& t) {
            const int rank = t[0].shape.rank();
            const int64_t h = t[0].shape[rank - 2], w = t[0].shape[rank - 1];
            Shape shape = t[0].shape;
            shape[rank - 2] = size.height, shape[rank - 1] = size.width;
            return generate(shape, [&](const Index& at) {
              const int64_t i = at[rank - 2], j = at[rank - 1];
              return mean_of(t[0], at, begin(i, h, size.height), end(i, h, size.height),
                             begin(j, w, size.width), end(j, w, size.width));
            });
          },
      .half_gradient_rounds = 2,
  });
}

void add_uncounted(OpTable& table, const InputSpec& x, int64_t kernel, int64_t stride,
                   int64_t padding) {
  table.push_back({
      .op = "avg_pool2d",
      .variant = "without the padding, " + std::to_string(kernel) + " of " + describe(x),
      .inputs = {x},
      .run =
          [=](const Tensors& t) {
            return avg_pool2d(t[0], kernel,
                              {.stride = stride, .padding = padding, .count_include_pad = false});
          },
      .reference =
          [=](const Arrays& t) {
            Shape shape = t[0].shape;
            for (const int axis : {2, 3}) {
              shape[axis] = (shape[axis] + 2 * padding - kernel) / stride + 1;
            }
            return generate(shape, [&](const Index& at) {
              const auto from = [&](int axis) {
                return std::max<int64_t>(0, at[axis] * stride - padding);
              };
              const auto to = [&](int axis) {
                return std::min(t[0].shape[axis], at[axis] * stride - padding + kernel);
              };
              return mean_of(t[0], at, from(2), to(2), from(3), to(3));
            });
          },
      .half_rounds = 2,
      .half_gradient_rounds = 3,
  });
}

/// Where element i of the result is along an axis of x.
double place(int64_t i, int64_t extent, int64_t size, double step, const InterpolateOptions& o) {
  const auto at = static_cast<double>(i), last = static_cast<double>(extent - 1);
  if (o.mode == InterpolateMode::nearest) return std::min(std::floor(at * step), last);
  if (o.align_corners) return size == 1 ? 0 : at * last / static_cast<double>(size - 1);
  return std::clamp((at + 0.5) * step - 0.5, 0.0, last);
}

Array interpolated(const Array& x, const InterpolateOptions& o) {
  Shape shape = x.shape;
  double step[2];
  for (const int axis : {2, 3}) {
    const auto extent = static_cast<double>(x.shape[axis]);
    if (o.size) {
      shape[axis] = axis == 2 ? o.size->height : o.size->width;
      step[axis - 2] = extent / static_cast<double>(shape[axis]);
    } else {
      shape[axis] = static_cast<int64_t>(extent * *o.scale_factor);
      step[axis - 2] = 1 / *o.scale_factor;
    }
  }
  return generate(shape, [&](const Index& at) {
    double sum = 0;
    const double row = place(at[2], x.shape[2], shape[2], step[0], o);
    const double column = place(at[3], x.shape[3], shape[3], step[1], o);
    for_each_index({x.shape[2], x.shape[3]}, [&](const Index& from) {
      const double share = std::max(0.0, 1 - std::abs(row - static_cast<double>(from[0]))) *
                           std::max(0.0, 1 - std::abs(column - static_cast<double>(from[1])));
      if (share > 0) sum += share * x[{at[0], at[1], from[0], from[1]}];
    });
    return sum;
  });
}

void add_interpolated(OpTable& table, const InputSpec& x, const InterpolateOptions& o) {
  for (const bool fused : {true, false}) {
    const auto f = fused ? interpolate : composite::interpolate;
    table.push_back({
        .op = "interpolate",
        .variant = std::string(fused ? "" : "composite, ") +
                   (o.mode == InterpolateMode::nearest ? "nearest, " : "bilinear, ") +
                   (o.align_corners ? "corners, " : "") + describe(x) + " to " +
                   (o.size ? both(*o.size) : std::to_string(*o.scale_factor)),
        .inputs = {x},
        .run = [=](const Tensors& t) { return f(t[0], o); },
        .reference = [=](const Arrays& t) { return interpolated(t[0], o); },
    });
  }
}

}  // namespace

void add_images(OpTable& table) {
  add_transposed(table, {{1, 1, 3, 3}}, {{1, 1, 2, 2}});
  add_transposed(table, {{2, 3, 4, 3}}, {{3, 2, 3, 3}}, {.stride = 2, .padding = 1});
  add_transposed(table, {{2, 4, 3, 5}}, {{4, 3, 3, 2}},
                 {.stride = {3, 2}, .padding = {1, 0}, .output_padding = {2, 1}, .groups = 2});
  add_transposed(table, {{3, 4, 5}}, {{3, 2, 2, 3}}, {.dilation = {2, 1}});
  add_transposed(table, {{2, 3, 4, 5}, heads}, {{3, 2, 2, 2}, transposed}, {.stride = 2});
  add_transposed(table, {{0, 2, 4, 4}}, {{2, 3, 2, 2}});
  for (const HeightWidth size : {HeightWidth(1), HeightWidth(2, 3), HeightWidth(5, 7)}) {
    add_adaptive(table, {{2, 3, 4, 6}}, size);
    add_adaptive(table, {{2, 3, 5}}, size);
    add_adaptive(table, {{2, 2, 4, 5}, sliced}, size);
  }
  add_adaptive(table, {{0, 2, 4, 4}}, 2);
  add_uncounted(table, {{2, 3, 5, 6}}, 3, 2, 1);
  add_uncounted(table, {{1, 2, 4, 4}, sliced}, 2, 1, 1);
  add_uncounted(table, {{1, 2, 4, 4}}, 2, 2, 0);
  for (const InterpolateMode mode : {InterpolateMode::nearest, InterpolateMode::bilinear}) {
    for (const bool align : {false, true}) {
      if (align && mode == InterpolateMode::nearest) continue;
      const auto to = [&](HeightWidth size) -> InterpolateOptions {
        return {.size = size, .mode = mode, .align_corners = align};
      };
      add_interpolated(table, {{2, 3, 4, 5}}, to({8, 10}));
      add_interpolated(table, {{1, 2, 5, 4}}, to({3, 7}));
      add_interpolated(table, {{1, 2, 3, 4}, sliced}, to({1, 1}));
      add_interpolated(table, {{2, 2, 1, 1}}, to({3, 2}));
      add_interpolated(table, {{2, 3, 4, 5}, heads}, to({4, 5}));
      add_interpolated(table, {{0, 2, 4, 4}}, to({2, 3}));
      add_interpolated(table, {{2, 2, 3, 5}},
                       {.scale_factor = 2, .mode = mode, .align_corners = align});
      add_interpolated(table, {{2, 2, 5, 7}},
                       {.scale_factor = 0.6, .mode = mode, .align_corners = align});
    }
  }
}

}  // namespace sash::testing
