#include <sash/ops/norm/softmax.h>

#include "../cases.h"

namespace sash::testing {
namespace {

struct Rows {
  InputSpec input;
  int64_t axis;
};

std::vector<Rows> rows() {
  return {
      {{{5}}, 0},
      {{{3, 1}}, -1},
      {{{2, 7}}, -1},
      {{{4, 3}}, 0},
      {{{2, 3, 4}}, 1},
      {{.shape = {2, 5}, .low = -80, .high = 80}, -1},
      {{{3, 63}}, -1},
      {{{65, 64}}, -1},
      {{{2, 65}}, -1},
      {{{130, 3}}, 0},
      {{{4, 130}}, -1},
      {{{3, 1030}}, -1},
      {{{0, 3}}, -1},
      {{{3, 0}}, -1},
      {{{4, 5}, transposed}, -1},
      {{{3, 5}, sliced}, -1},
      {{{3, 5}, padded}, -1},
      {{{3, 5}, expanded}, -1},
      {{{2, 3, 4}, heads}, -1},
  };
}

Array softmax_of(const Array& x, int64_t axis) {
  return map_lines(x, positive(axis, x.shape.rank()), softmax_line);
}

Array log_softmax_of(const Array& x, int64_t axis) {
  return map_lines(x, positive(axis, x.shape.rank()), [](std::vector<double> row) {
    const double scale = log_sum_exp(row);
    for (double& value : row) value = std::isinf(scale) ? -kInfinity : value - scale;
    return row;
  });
}

using Function = Tensor (*)(const Tensor&, int64_t);
using Reference = Array (*)(const Array&, int64_t);

void add_rows(OpTable& table, const std::string& name, const std::string& kind, Function f,
              Reference reference) {
  for (const auto& [input, axis] : rows()) {
    table.push_back({
        .op = name,
        .variant = kind + "axis " + std::to_string(axis) + " of " + describe(input) +
                   (input.high > 10 ? ", large" : ""),
        .inputs = {input},
        .run = [f, along = axis](const Tensors& x) { return f(x[0], along); },
        .reference = [reference, along = axis](const Arrays& x) { return reference(x[0], along); },
        .half_rounds = kind.empty() ? 1.0 : 3,
        .half_gradient_rounds = kind.empty() ? 2.0 : 8,  // of the result that was kept, and its own
        .half_gradient_scale = 1,
    });
  }
  const double inf = -kInfinity;
  table.push_back({
      .op = name,
      .variant = kind + "masked rows and NaN",
      .inputs = {{.shape = {4, 3},
                  .elements = {1, inf, 2, inf, inf, inf, 3, inf, inf, 1, kNaN, 2}}},
      .run = [f](const Tensors& x) { return f(x[0], -1); },
      .reference =
          [reference](const Arrays& x) {
            Array y = reference(x[0], -1);
            for (int64_t j = 0; j < 3; ++j) y[{3, j}] = kNaN;
            return y;
          },
      .differentiable = false,
  });
}

}  // namespace

void add_softmax(OpTable& table) {
  add_rows(table, "softmax", "", softmax, softmax_of);
  add_rows(table, "log_softmax", "", log_softmax, log_softmax_of);
  add_rows(table, "softmax", "composite, ", composite::softmax, softmax_of);
  add_rows(table, "log_softmax", "composite, ", composite::log_softmax, log_softmax_of);
  table.push_back({
      .op = "softmax",
      .variant = "timed [1024, 1024]",
      .inputs = {{{1024, 1024}}},
      .run = [](const Tensors& x) { return softmax(x[0]); },
      .reference = [](const Arrays& x) { return softmax_of(x[0], -1); },
      .dtypes = {DType::float32},
      .timed = true,
      .operations = 5.0 * 1024 * 1024,
      .bytes = 8.0 * 1024 * 1024,
  });
}

}  // namespace sash::testing
