// Words of PyTorch that are compositions of other ops.
#include <sash/ops/index/bincount.h>
#include <sash/ops/index/gather.h>
#include <sash/ops/index/indexing.h>
#include <sash/ops/index/quantile.h>
#include <sash/ops/linalg/cdist.h>
#include <sash/ops/linalg/matmul.h>
#include <sash/ops/norm/group_norm.h>
#include <sash/ops/norm/normalize.h>
#include <sash/ops/reduce/reduce.h>
#include <sash/ops/shape/rearrange.h>

#include <algorithm>
#include <numeric>

#include "cases.h"

namespace sash::testing {
namespace {

using Line = std::vector<double>;

void add_cumprod(OpTable& table) {
  const auto add = [&](const InputSpec& input, int64_t axis, std::vector<DType> dtypes = kFloats) {
    for (const bool fused : {true, false}) {
      const auto f = fused ? cumprod : composite::cumprod;
      const bool whole = dtypes != kFloats;
      table.push_back({
          .op = "cumprod",
          .variant = std::string(fused ? "" : "composite, ") + "axis " + std::to_string(axis) +
                     " of " + describe(input) + (input.elements.empty() ? "" : ", zeros") +
                     (whole ? ", integers" : ""),
          .inputs = {input},
          .run = [=](const Tensors& x) { return f(x[0], axis); },
          .reference =
              [axis](const Arrays& x) {
                return map_lines(x[0], positive(axis, x[0].shape.rank()), [](Line line) {
                  std::partial_sum(line.begin(), line.end(), line.begin(), std::multiplies<>());
                  return line;
                });
              },
          .dtypes = dtypes,
          .results = whole ? std::vector<DType>{DType::int64} : std::vector<DType>{},
          .tolerance32 = 3e-5,
          .half_rounds = 8,  // of the composite
          .half_gradient_rounds = 16,
          .half_gradient_scale = 64,
          .differentiable = !whole,
      });
    }
  };
  add({.shape = {7}, .low = -1.5, .high = 1.5}, 0);
  add({.shape = {3, 65}, .low = 0.9, .high = 1.1}, -1);
  add({.shape = {4, 3}}, 0);
  add({.shape = {0, 3}}, 0);
  add({.shape = {2, 3, 4}, .layout = heads}, 1);
  add({.shape = {3, 4}, .layout = transposed}, 1);
  add({.shape = {2, 5}, .elements = {2, 0, -1, 0, 3, 1, 2, 3, 0, 5}}, 1);
  add({.shape = {2, 5}, .low = 0, .high = 4}, 1, {DType::int32, DType::int64, DType::uint8});
}

void add_median(OpTable& table) {
  const auto middle = [](Line line) {
    for (const double x : line) {
      if (std::isnan(x)) return kNaN;
    }
    std::sort(line.begin(), line.end());
    return line.at((line.size() - 1) / 2);
  };
  const auto add = [&](const InputSpec& input, std::optional<int64_t> axis, bool keepdim,
                       const std::vector<DType>& dtypes = kNumbers) {
    for (const bool fused : {true, false}) {
      if (!fused && !axis) continue;
      table.push_back({
          .op = "median",
          .variant = (fused ? "" : "composite, ") +
                     (axis ? "axis " + std::to_string(*axis) + " of " : "") + describe(input) +
                     (keepdim ? ", kept" : "") + (input.elements.empty() ? "" : ", NaN and ties"),
          .inputs = {input},
          .run = [=](const Tensors& x) -> Tensors {
            if (!axis) return {median(x[0])};
            const auto f = [&](const auto&... in) {
              return fused ? median(in...) : composite::median(in...);
            };
            const Chosen found = f(x[0], *axis, keepdim);
            return {found.values,
                    gather(x[0], *axis, keepdim ? found.indices : found.indices.unsqueeze(*axis))};
          },
          .reference = [=](const Arrays& x) -> Arrays {
            if (!axis) return {Array({}, middle(x[0].values))};
            const int at = positive(*axis, x[0].shape.rank());
            Shape shape = x[0].shape;
            shape[at] = 1;
            const Array kept =
                generate(shape, [&](const Index& i) { return middle(line(x[0], i, at)); });
            Array y = kept;
            if (!keepdim) y.shape.erase(at);
            return {y, kept};
          },
          .dtypes = dtypes,
          .differentiable = input.elements.empty(),
      });
    }
  };
  add({.shape = {3, 5}, .distinct = true}, 1, false);
  add({.shape = {4, 3}, .distinct = true}, 0, true);
  add({.shape = {2, 6, 3}, .layout = heads, .distinct = true}, -2, false);
  add({.shape = {65, 3}, .distinct = true}, 0, false);
  add({.shape = {3, 700}, .distinct = true}, 1, false);
  add({.shape = {3, 6}, .distinct = true}, {}, false);
  add({.shape = {}}, {}, false);
  add({.shape = {3, 4}, .elements = {1, kNaN, 0, 2, 3, 3, 1, 3, kNaN, 1, kNaN, 2}}, 1, false,
      kFloats);
  add({.shape = {5}, .elements = {2, 1, 2, 2, 5}}, {}, false, kFloats);
}

double at_rank(Line line, double q, Interpolation how) {
  for (const double x : line) {
    if (std::isnan(x)) return kNaN;
  }
  std::sort(line.begin(), line.end());
  const double rank = q * static_cast<double>(line.size() - 1);
  const double a = line.at(static_cast<size_t>(std::floor(rank)));
  const double b = line.at(static_cast<size_t>(std::ceil(rank)));
  switch (how) {
    case Interpolation::lower:
      return a;
    case Interpolation::higher:
      return b;
    case Interpolation::midpoint:
      return (a + b) / 2;
    case Interpolation::nearest:
      return line.at(static_cast<size_t>(std::nearbyint(rank)));
    default:
      return a + (b - a) * (rank - std::floor(rank));
  }
}

void add_quantile(OpTable& table) {
  const auto add = [&](const InputSpec& input, const Line& q, const QuantileOptions& options) {
    table.push_back({
        .op = "quantile",
        .variant = std::to_string(q.size()) + " of " + describe(input) + ", axis " +
                   (options.axis ? std::to_string(*options.axis) : "none") + ", kind " +
                   std::to_string(static_cast<int>(options.interpolation)) +
                   (options.keepdim ? ", kept" : "") + (input.elements.empty() ? "" : ", NaN"),
        .inputs = {input},
        .run =
            [=](const Tensors& x) {
              return q.size() == 1 ? quantile(x[0], q[0], options) : quantile(x[0], q, options);
            },
        .reference =
            [=](const Arrays& x) {
              Array in = x[0];
              if (!options.axis) in.shape = {count(in.shape)};
              const int axis = positive(options.axis.value_or(0), in.shape.rank());
              Shape shape = in.shape;
              shape[axis] = 1;
              Array y(Shape{static_cast<int64_t>(q.size()), count(shape)});
              for (size_t k = 0; k < q.size(); ++k) {
                int64_t place = 0;
                for_each_index(shape, [&](const Index& i) {
                  y[{static_cast<int64_t>(k), place++}] =
                      at_rank(line(in, i, axis), q[k], options.interpolation);
                });
              }
              Shape whole = shape;
              if (!options.keepdim) whole.erase(axis);
              if (!options.axis && options.keepdim) whole = Shape::filled(x[0].shape.rank(), 1);
              if (q.size() > 1) whole.insert(0, static_cast<int64_t>(q.size()));
              y.shape = whole;
              return y;
            },
        .half_rounds = 2,
        .differentiable = input.elements.empty(),
    });
  };
  using enum Interpolation;
  for (const Interpolation how : {linear, lower, higher, midpoint, nearest}) {
    add({.shape = {3, 5}, .distinct = true}, {0.3}, {.axis = 1, .interpolation = how});
    add({.shape = {4, 3}, .distinct = true}, {0, 0.7, 1}, {.axis = 0, .interpolation = how});
  }
  add({.shape = {2, 6, 3}, .layout = heads, .distinct = true}, {0.9},
      {.axis = -2, .keepdim = true});
  add({.shape = {3, 4}, .distinct = true}, {0.25, 0.5}, {.keepdim = true});
  add({.shape = {3, 4}, .distinct = true}, {0.6}, {});
  add({.shape = {2, 3}, .elements = {1, kNaN, 2, 3, 5, 4}}, {0.5}, {.axis = 1});
}

void add_bincount(OpTable& table) {
  const auto add = [&](const InputSpec& input, bool weighted, int64_t least) {
    std::vector<InputSpec> inputs{input};
    if (weighted) inputs.push_back({.shape = input.shape, .requires_grad = false});
    table.push_back({
        .op = "bincount",
        .variant = describe(input) + (weighted ? ", weighted" : "") + ", at least " +
                   std::to_string(least),
        .inputs = inputs,
        .run = [=](const Tensors& x) { return bincount(x[0], weighted ? x[1] : Tensor(), least); },
        .reference =
            [=](const Arrays& x) {
              double most = static_cast<double>(least) - 1;
              for (const double value : x[0].values) most = std::max(most, value);
              Array y(Shape{static_cast<int64_t>(most) + 1});
              for (size_t i = 0; i < x[0].values.size(); ++i) {
                y.values[static_cast<size_t>(x[0].values[i])] += weighted ? x[1].values[i] : 1;
              }
              return y;
            },
        .dtypes = {weighted ? DType::float64 : DType::float32},  // of weights, halves too
        .results = {weighted ? DType::float64 : DType::int64},
        .differentiable = false,
    });
  };
  for (const bool weighted : {false, true}) {
    add(indices({50}, 7), weighted, 0);
    add(indices({9}, 4, sliced), weighted, 12);
    add(indices({0}, 4), weighted, 3);
  }
}

void add_diag(OpTable& table) {
  for (const int64_t k : {0, 1, -2}) {
    for (const InputSpec& input :
         {InputSpec{{4}}, InputSpec{{3}, sliced}, InputSpec{{3, 4}}, InputSpec{{5, 3}, transposed},
          InputSpec{{2, 2}}, InputSpec{{0}}}) {
      table.push_back({
          .op = "diag",
          .variant = std::to_string(k) + " of " + describe(input),
          .inputs = {input},
          .run = [k](const Tensors& x) { return diag(x[0], k); },
          .reference =
              [k](const Arrays& x) {
                const Shape& shape = x[0].shape;
                const int64_t down = std::max<int64_t>(-k, 0), right = std::max<int64_t>(k, 0);
                if (shape.rank() == 2) {
                  const int64_t n = std::min(shape[0] - down, shape[1] - right);
                  return generate({std::max<int64_t>(n, 0)}, [&](const Index& at) {
                    return x[0][{at[0] + down, at[0] + right}];
                  });
                }
                const int64_t n = shape[0] + down + right;
                return generate({n, n}, [&](const Index& at) {
                  return at[1] - at[0] == k ? x[0][{at[0] - down}] : 0.0;
                });
              },
          .dtypes = kNumbers,
      });
    }
  }
}

void add_products(OpTable& table) {
  table.push_back({
      .op = "outer",
      .variant = "[3] and [5]",
      .inputs = {{{3}}, {{5}, sliced}},
      .run = [](const Tensors& x) { return outer(x[0], x[1]); },
      .reference =
          [](const Arrays& x) {
            return generate({3, 5}, [&](const Index& at) { return x[0][{at[0]}] * x[1][{at[1]}]; });
          },
      .dtypes = kNumbers,
  });
  const auto add = [&](const InputSpec& a, const InputSpec& b, double p) {
    table.push_back({
        .op = "cdist",
        .variant = describe(a) + " and " + describe(b) + ", p " + std::to_string(p),
        .inputs = {a, b},
        .run = [p](const Tensors& x) { return cdist(x[0], x[1], p); },
        .reference =
            [p](const Arrays& x) {
              const int rank = x[0].shape.rank();
              const int64_t n = x[1].shape[rank - 2], depth = x[0].shape[rank - 1];
              Shape shape = x[0].shape;
              shape[rank - 1] = n;
              return generate(shape, [&](const Index& at) {
                double sum = 0, most = 0;
                for (int64_t d = 0; d < depth; ++d) {
                  const double difference =
                      std::abs(x[0][replaced(at, rank - 1, d)] -
                               x[1][replaced(replaced(at, rank - 2, at[rank - 1]), rank - 1, d)]);
                  sum += std::pow(difference, p);
                  most = std::max(most, difference);
                }
                return std::isinf(p) ? most : std::pow(sum, 1 / p);
              });
            },
        .tolerance32 = 1e-4,
        .gradient32 = 1e-3,
        .half_gradient_rounds = 2,
        .half_gradient_scale = 4,
    });
  };
  for (const double p : {1.0, 2.0, 3.5, kInfinity}) {
    add({.shape = {4, 3}, .low = 0.1, .high = 2}, {.shape = {5, 3}, .low = -2, .high = -0.1}, p);
    add({.shape = {2, 3, 2}, .layout = transposed, .low = 0.1, .high = 2},
        {.shape = {2, 2, 2}, .low = -2, .high = -0.1}, p);
  }
  add({{30, 4}}, {{3, 4}}, 2);
  add({{2, 3, 5}, heads}, {{2, 28, 5}}, 2);
  add({{0, 3}}, {{4, 3}}, 2);
}

void add_norms(OpTable& table) {
  const auto add = [&](const InputSpec& input, double p, int64_t axis) {
    table.push_back({
        .op = "normalize",
        .variant = describe(input) + ", p " + std::to_string(p) + ", axis " + std::to_string(axis),
        .inputs = {input},
        .run = [=](const Tensors& x) { return normalize(x[0], {.p = p, .axis = axis}); },
        .reference =
            [=](const Arrays& x) {
              return map_lines(x[0], positive(axis, x[0].shape.rank()), [p](Line line) {
                double sum = 0;
                for (const double value : line) sum += std::pow(std::abs(value), p);
                for (double& value : line) value /= std::max(std::pow(sum, 1 / p), 1e-12);
                return line;
              });
            },
        .half_gradient_rounds = 2,
    });
  };
  add({.shape = {3, 5}, .low = 0.5}, 2, 1);
  add({.shape = {4, 3}, .low = 0.5}, 1, 0);
  add({.shape = {2, 3, 4}, .layout = heads, .low = 0.5}, 3, -1);
  for (const auto& [input, groups] : {std::pair<InputSpec, int64_t>{{{2, 4}}, 2},
                                      {{{3, 6, 5}}, 3},
                                      {{{2, 4, 3, 5}}, 1},
                                      {{{2, 4, 3, 5}, heads}, 4},
                                      {{{2, 6, 4}, sliced}, 2}}) {
    for (const bool affine : {false, true}) {
      std::vector<InputSpec> inputs{input};
      if (affine) inputs.insert(inputs.end(), 2, InputSpec{{input.shape[1]}});
      table.push_back({
          .op = "group_norm",
          .variant =
              std::to_string(groups) + " groups of " + describe(input) + (affine ? ", affine" : ""),
          .inputs = inputs,
          .run =
              [=, groups = groups](const Tensors& x) {
                return group_norm(x[0], groups, affine ? x[1] : Tensor(), affine ? x[2] : Tensor(),
                                  1e-3);
              },
          .reference =
              [=, groups = groups](const Arrays& x) {
                Array y = x[0];
                const size_t rows = static_cast<size_t>(x[0].shape[0] * groups);
                const size_t length = y.values.size() / rows;
                for (size_t row = 0; row < rows; ++row) {
                  const auto from = y.values.begin() + static_cast<std::ptrdiff_t>(row * length);
                  const auto to = from + static_cast<std::ptrdiff_t>(length);
                  const double n = static_cast<double>(length);
                  const double mean = std::accumulate(from, to, 0.0) / n;
                  double var = 0;
                  for (auto at = from; at != to; ++at) var += (*at - mean) * (*at - mean) / n;
                  for (auto at = from; at != to; ++at) *at = (*at - mean) / std::sqrt(var + 1e-3);
                }
                if (!affine) return y;
                for_each_index(y.shape, [&](const Index& at) {
                  y[at] = y[at] * x[1][{at[1]}] + x[2][{at[1]}];
                });
                return y;
              },
          .half_gradient_rounds = 3,
          .half_gradient_scale = 4,
      });
    }
  }
}

void add_masked_select(OpTable& table) {
  const InputSpec mask{
      .shape = {3, 4}, .dtype = DType::boolean, .elements = {1, 0, 0, 1, 0, 0, 0, 0, 1, 1, 0, 1}};
  for (const InputSpec& input :
       {InputSpec{{3, 4}}, InputSpec{{4}}, InputSpec{{3, 4}, transposed}, InputSpec{{2, 1, 4}}}) {
    table.push_back({
        .op = "masked_select",
        .variant = describe(input),
        .inputs = {input, mask},
        .run = [](const Tensors& x) { return masked_select(x[0], x[1]); },
        .reference =
            [](const Arrays& x) {
              Line chosen;
              const Shape shape = broadcast_shape(x[0].shape, x[1].shape);
              const Array values = zip(x[0], Array(shape), [](double a, double) { return a; });
              const Array kept = zip(x[1], Array(shape), [](double a, double) { return a; });
              for (size_t i = 0; i < values.values.size(); ++i) {
                if (kept.values[i] != 0) chosen.push_back(values.values[i]);
              }
              Array y(Shape{static_cast<int64_t>(chosen.size())});
              y.values = chosen;
              return y;
            },
        .dtypes = kNumbers,
    });
  }
}

}  // namespace

void add_words(OpTable& table) {
  add_cumprod(table);
  add_median(table);
  add_quantile(table);
  add_bincount(table);
  add_diag(table);
  add_products(table);
  add_norms(table);
  add_masked_select(table);
}

}  // namespace sash::testing
