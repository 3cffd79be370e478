#include <sash/ops/reduce/norm.h>
#include <sash/ops/reduce/reduce.h>

#include <algorithm>
#include <numeric>

#include "cases.h"

namespace sash::testing {
namespace {

using Line = std::vector<double>;

std::vector<bool> reduced_axes(const Dims& axes, int rank) {
  std::vector<bool> reduced(static_cast<size_t>(rank), axes.empty());
  for (const int64_t axis : axes) reduced[static_cast<size_t>(positive(axis, rank))] = true;
  return reduced;
}

// The elements that each result is made of, in row-major order, go through `f`.
Array reduced(const Array& x, const Dims& axes, bool keepdim,
              const std::function<double(const Line&)>& f) {
  const std::vector<bool> reduced = reduced_axes(axes, x.shape.rank());
  Shape kept_shape = x.shape, final_shape, inner_shape = x.shape;
  for (int axis = 0; axis < x.shape.rank(); ++axis) {
    const bool gone = reduced[static_cast<size_t>(axis)];
    if (gone) kept_shape[axis] = 1;
    if (!gone) inner_shape[axis] = 1;
    if (!gone || keepdim) final_shape.push_back(kept_shape[axis]);
  }
  Array y = generate(kept_shape, [&](const Index& at) {
    Line elements;
    for_each_index(inner_shape, [&](const Index& inner) {
      Index index = at;
      for (int axis = 0; axis < index.rank(); ++axis) index[axis] += inner[axis];
      elements.push_back(x[index]);
    });
    return f(elements);
  });
  y.shape = final_shape;
  return y;
}

double total(const Line& x) { return std::accumulate(x.begin(), x.end(), 0.0); }
double average(const Line& x) { return total(x) / static_cast<double>(x.size()); }

double variance(const Line& x, double correction) {
  const double center = average(x);
  double sum = 0;
  for (const double value : x) sum += (value - center) * (value - center);
  return sum / std::max(0.0, static_cast<double>(x.size()) - correction);
}

double greatest(const Line& x) {
  double best = -kInfinity;
  for (const double value : x) {
    if (std::isnan(value)) return value;
    best = std::max(best, value);
  }
  return best;
}

double least(const Line& x) {
  Line negated;
  for (const double value : x) negated.push_back(-value);
  return -greatest(negated);
}

double product(const Line& x) {
  return std::accumulate(x.begin(), x.end(), 1.0, std::multiplies<>());
}

Line magnitudes(Line x) {
  for (double& value : x) value = std::abs(value);
  return x;
}

double length(const Line& x, double p) {
  double sum = 0;
  for (const double value : x) sum += std::pow(std::abs(value), p);
  return std::pow(sum, 1 / p);
}

struct Reduction {
  std::string name;
  std::string option;
  std::function<Tensor(const Tensor&, const Dims&, bool)> run;
  std::function<double(const Line&)> formula;
  bool distinct = false;
};

std::vector<Reduction> reductions() {
  using T = const Tensor&;
  using D = const Dims&;
  return {
      {"sum", "", [](T x, D axes, bool keep) { return sum(x, axes, keep); }, total},
      {"sum", "member, ", [](T x, D axes, bool keep) { return x.sum(axes, keep); }, total},
      {"mean", "", [](T x, D axes, bool keep) { return mean(x, axes, keep); }, average},
      {"mean", "member, ", [](T x, D axes, bool keep) { return x.mean(axes, keep); }, average},
      {"var", "", [](T x, D axes, bool keep) { return var(x, axes, 1, keep); },
       [](const Line& x) { return variance(x, 1); }},
      {"var", "biased, ", [](T x, D axes, bool keep) { return var(x, axes, 0, keep); },
       [](const Line& x) { return variance(x, 0); }},
      {"amax", "", [](T x, D axes, bool keep) { return amax(x, axes, keep); }, greatest, true},
      {"amin", "", [](T x, D axes, bool keep) { return amin(x, axes, keep); }, least, true},
      {"std", "", [](T x, D axes, bool keep) { return sash::std(x, axes, 1, keep); },
       [](const Line& x) { return std::sqrt(variance(x, 1)); }},
      {"prod", "", [](T x, D axes, bool keep) { return prod(x, axes, keep); }, product},
      {"norm", "", [](T x, D axes, bool keep) { return norm(x, 2, axes, keep); },
       [](const Line& x) { return length(x, 2); }},
      {"norm", "p 1, ", [](T x, D axes, bool keep) { return norm(x, 1, axes, keep); },
       [](const Line& x) { return length(x, 1); }},
      {"norm", "p 3.5, ", [](T x, D axes, bool keep) { return norm(x, 3.5, axes, keep); },
       [](const Line& x) { return length(x, 3.5); }},
      {"norm", "p 0, ", [](T x, D axes, bool keep) { return norm(x, 0, axes, keep); },
       [](const Line& x) {
         return double(x.size()) - double(std::count(x.begin(), x.end(), 0.0));
       }},
      {"norm", "largest, ", [](T x, D axes, bool keep) { return norm(x, kInfinity, axes, keep); },
       [](const Line& x) { return greatest(magnitudes(x)); }, true},
      {"norm", "smallest, ", [](T x, D axes, bool keep) { return norm(x, -kInfinity, axes, keep); },
       [](const Line& x) { return least(magnitudes(x)); }, true},
      {"logsumexp", "", [](T x, D axes, bool keep) { return logsumexp(x, axes, keep); },
       log_sum_exp},
  };
}

struct Extent {
  InputSpec input;
  Dims axes;
  bool keepdim = false;
};

std::vector<Extent> extents() {
  return {
      {{{6}}, {}},
      {{{3, 4}}, {}},
      {{{3, 4}}, {0}},
      {{{3, 4}}, {-1}, true},
      {{{2, 3, 4}}, {1}},
      {{{2, 3, 2, 2}}, {1, 3}},
      {{{2, 3, 2, 2}}, {-2, 0}, true},
      {{{65, 130}}, {0}},
      {{{70, 264}}, {0}},
      {{{65, 130}}, {1}},
      {{{64, 63}}, {}},
      {{{1, 4097}}, {1}},
      {{{5, 3}, transposed}, {1}},
      {{{3, 5}, sliced}, {0}},
      {{{3, 5}, padded}, {1}},
      {{{3, 5}, expanded}, {1}},
      {{{2, 3, 4}, heads}, {0, 2}},
      {{{3, 0}}, {0}},
  };
}

std::string describe(const Extent& extent) {
  return "axes " + to_string(extent.axes) + " of " + describe(extent.input) +
         (extent.keepdim ? ", kept" : "");
}

void add_reduction(OpTable& table, const Reduction& op, Extent extent) {
  const Layout layout = extent.input.layout;
  if (op.distinct && layout == expanded) return;  // nothing but ties along the axis
  extent.input.distinct = op.distinct;
  if (op.name == "norm") extent.input.low = -1, extent.input.high = 2.03;  // magnitudes differ too
  table.push_back({
      .op = op.name,
      .variant = op.option + describe(extent),
      .inputs = {extent.input},
      .run = [run = op.run,
              extent](const Tensors& x) { return run(x[0], extent.axes, extent.keepdim); },
      .reference = [f = op.formula, extent](
                       const Arrays& x) { return reduced(x[0], extent.axes, extent.keepdim, f); },
  });
}

void add_sums(OpTable& table) {
  for (const Shape& shape : {Shape{3, 65}, Shape{0, 3}, Shape{}}) {
    table.push_back({
        .op = "sum",
        .variant = "integers " + to_string(shape),
        .inputs = {{.shape = shape, .low = 0, .high = 9}},
        .run = [](const Tensors& x) { return sum(x[0]); },
        .reference = [](const Arrays& x) { return reduced(x[0], {}, false, total); },
        .dtypes = {DType::int32, DType::int64, DType::uint8},
        .results = {DType::int64},
        .differentiable = false,
    });
  }
  table.push_back({
      .op = "sum",
      .variant = "bool",
      .inputs = {{.shape = {7, 9}, .low = 0, .high = 2, .dtype = DType::boolean}},
      .run = [](const Tensors& x) { return sum(x[0], {1}); },
      .reference = [](const Arrays& x) { return reduced(x[0], {1}, false, total); },
      .dtypes = {DType::float32},
      .results = {DType::int64},
      .differentiable = false,
  });
  table.push_back({
      .op = "sum",
      .variant = "no argument",
      .inputs = {{{2, 3}}},
      .run = [](const Tensors& x) { return x[0].sum() + x[0].mean(); },
      .reference =
          [](const Arrays& x) {
            return zip(reduced(x[0], {}, false, total), reduced(x[0], {}, false, average),
                       [](double a, double b) { return a + b; });
          },
  });
}

// NaN wins, -inf alone stays -inf, the sum of nothing is 0 and its mean NaN.
void add_special_values(OpTable& table) {
  const double low = -kInfinity;
  const InputSpec hard{.shape = {3, 3}, .elements = {1, kNaN, 2, low, low, low, 3, 3, low}};
  const InputSpec nothing{{0, 2}};
  for (const Reduction& op : reductions()) {
    const bool extremum = op.distinct;
    for (const InputSpec& input : {hard, nothing}) {
      if (input.elements.empty() && extremum) continue;
      if (!input.elements.empty() && op.option == "p 0, ") continue;  // counts NaN
      const Dims axes{input.elements.empty() ? 0 : 1};
      table.push_back({
          .op = op.name,
          .variant = op.option + (input.elements.empty() ? "nothing" : "NaN and infinities"),
          .inputs = {input},
          .run = [run = op.run, axes](const Tensors& x) { return run(x[0], axes, false); },
          .reference =
              [f = op.formula, axes, name = op.name](const Arrays& x) {
                return reduced(x[0], axes, false, [&](const Line& elements) {
                  for (const double value : elements) {
                    if (std::isnan(value)) return value;
                  }
                  return f(elements);
                });
              },
          .differentiable = false,
      });
    }
  }
}

int64_t position(const Line& x, bool of_greatest) {
  size_t best = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    if (std::isnan(x[i])) return static_cast<int64_t>(i);
    if (of_greatest ? x[i] > x[best] : x[i] < x[best]) best = i;
  }
  return static_cast<int64_t>(best);
}

void add_positions(OpTable& table, const std::string& name, bool greatest_wanted,
                   Tensor (*run)(const Tensor&, int64_t, bool)) {
  const auto add = [&](const InputSpec& input, int64_t axis, bool keepdim,
                       std::vector<DType> dtypes) {
    table.push_back({
        .op = name,
        .variant = "axis " + std::to_string(axis) + " of " + describe(input) +
                   (keepdim ? ", kept" : "") + (input.elements.empty() ? "" : ", NaN and ties"),
        .inputs = {input},
        .run = [=](const Tensors& x) { return run(x[0], axis, keepdim); },
        .reference =
            [=](const Arrays& x) {
              return reduced(x[0], {axis}, keepdim, [=](const Line& line) {
                return static_cast<double>(position(line, greatest_wanted));
              });
            },
        .dtypes = std::move(dtypes),
        .results = {DType::int64},
        .differentiable = false,
    });
  };
  add({{3, 65}}, 1, false, kNumbers);
  add({{65, 3}}, 0, true, kNumbers);
  add({{4, 3, 5}, heads}, -2, false, kNumbers);
  add({{3, 7}, sliced}, -1, false, kNumbers);
  add({.shape = {2, 4}, .elements = {1, 5, 5, 1, 2, kNaN, 7, kNaN}}, -1, false,
      {DType::float32, DType::float64});
}

void add_cumsum(OpTable& table) {
  const auto add = [&](const InputSpec& input, int64_t axis) {
    table.push_back({
        .op = "cumsum",
        .variant = "axis " + std::to_string(axis) + " of " + describe(input),
        .inputs = {input},
        .run = [axis](const Tensors& x) { return cumsum(x[0], axis); },
        .reference =
            [axis](const Arrays& x) {
              const int at = positive(axis, x[0].shape.rank());
              return generate(x[0].shape, [&](const Index& index) {
                double sum = 0;
                for (int64_t i = 0; i <= index[at]; ++i) sum += x[0][replaced(index, at, i)];
                return sum;
              });
            },
    });
  };
  add({{7}}, 0);
  add({{3, 65}}, -1);
  add({{4, 3}}, 0);
  add({{0, 3}}, 0);
  add({{2, 3, 4}, heads}, 1);
  add({{3, 4}, transposed}, 1);
}

void add_any_all(OpTable& table) {
  const auto add = [&](const InputSpec& input, const Dims& axes, bool keepdim,
                       std::vector<DType> dtypes) {
    for (const bool every : {false, true}) {
      table.push_back({
          .op = every ? "all" : "any",
          .variant = "axes " + to_string(axes) + " of " + describe(input) +
                     (keepdim ? ", kept" : "") + (input.dtype == DType::boolean ? ", bool" : "") +
                     (input.elements.empty() ? "" : ", NaN"),
          .inputs = {input},
          .run =
              [=](const Tensors& x) {
                return every ? all(x[0], axes, keepdim) : any(x[0], axes, keepdim);
              },
          .reference =
              [=](const Arrays& x) {
                return reduced(x[0], axes, keepdim, [=](const Line& line) {
                  const auto zeros = std::count(line.begin(), line.end(), 0.0);
                  return double(every ? zeros == 0 : zeros < static_cast<int64_t>(line.size()));
                });
              },
          .dtypes = dtypes,
          .results = {DType::boolean},
          .differentiable = false,
      });
    }
  };
  const std::vector<DType> integers{DType::int32, DType::int64, DType::uint8};
  add({{40, 3}, contiguous, 0, 3}, {1}, false, integers);
  add({{3, 2, 2}, heads, 0, 2}, {-1, 0}, true, integers);
  add({{9, 4}, transposed, 0, 2, DType::boolean}, {1}, false, {DType::float32});
  add({{}, contiguous, 0, 2, DType::boolean}, {}, false, {DType::float32});
  add({.shape = {3, 2}, .elements = {0, kNaN, 0, -0.0, 1, 1e-30}}, {1}, false, kFloats);
  add({{2, 0}}, {1}, false, kFloats);
  add({{5, 7}, sliced}, {}, false, kFloats);
}

// Beside zeros and where a result is 0, derivatives are 0 or finite.
void add_zeros(OpTable& table) {
  const InputSpec zeros{.shape = {3, 4}, .elements = {0, 0, 0, 0, 2, 0, -1, 3, 0, 5, 0, 1}};
  table.push_back({
      .op = "prod",
      .variant = "of zeros",
      .inputs = {zeros},
      .run = [](const Tensors& x) { return prod(x[0], {1}); },
      .reference = [](const Arrays& x) { return reduced(x[0], {1}, false, product); },
  });
  table.push_back({
      .op = "prod",
      .variant = "integers",
      .inputs = {{.shape = {3, 13}, .low = 1, .high = 4}},
      .run = [](const Tensors& x) { return prod(x[0], {-1}, true); },
      .reference = [](const Arrays& x) { return reduced(x[0], {-1}, true, product); },
      .dtypes = {DType::int32, DType::int64, DType::uint8},
      .results = {DType::int64},
      .differentiable = false,
  });
}

void add_sum_to(OpTable& table, const InputSpec& input, const Shape& shape) {
  table.push_back({
      .op = "sum_to",
      .variant = to_string(shape) + " of " + describe(input),
      .inputs = {input},
      .run = [shape](const Tensors& x) { return sum_to(x[0], shape); },
      .reference =
          [shape](const Arrays& x) {
            Array y(shape);
            for_each_index(x[0].shape, [&](const Index& index) {
              Index at;
              for (int axis = 0; axis < shape.rank(); ++axis) {
                const int64_t i = index[axis + index.rank() - shape.rank()];
                at.push_back(shape[axis] == 1 ? 0 : i);
              }
              y[at] += x[0][index];
            });
            return y;
          },
  });
}

}  // namespace

void add_reduce(OpTable& table) {
  for (const Reduction& op : reductions()) {
    for (const Extent& extent : extents()) add_reduction(table, op, extent);
  }
  add_sums(table);
  add_special_values(table);
  add_positions(table, "argmax", true, argmax);
  add_positions(table, "argmin", false, argmin);
  add_cumsum(table);
  add_any_all(table);
  add_zeros(table);
  add_sum_to(table, {{2, 3, 4}}, {3, 1});
  add_sum_to(table, {{3, 4}, transposed}, {1, 4});
  add_sum_to(table, {{65, 3}}, {});
  add_sum_to(table, {{3, 4}, sliced}, {3, 4});
}

}  // namespace sash::testing
