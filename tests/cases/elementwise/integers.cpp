#include <sash/ops/elementwise/binary.h>
#include <sash/ops/elementwise/unary.h>
#include <sash/ops/linalg/matmul.h>
#include <sash/ops/reduce/reduce.h>

#include <algorithm>
#include <cmath>

#include "../cases.h"

/// Arithmetic of integers and bool: uint8 wraps, bool adds by or and multiplies by and.
namespace sash::testing {
namespace {

const std::vector<DType> kWide{DType::int32, DType::int64};
const std::vector<DType> kIntegers{DType::int32, DType::int64, DType::uint8};

using Run = std::function<Tensor(const Tensors&)>;
using Reference = std::function<Array(const Arrays&)>;

void add(OpTable& table, const char* op, const std::string& variant,
         const std::vector<InputSpec>& inputs, Run run, Reference reference,
         const std::vector<DType>& dtypes, const std::vector<DType>& results = {}) {
  table.push_back({
      .op = op,
      .variant = variant,
      .inputs = inputs,
      .run = std::move(run),
      .reference = std::move(reference),
      .dtypes = dtypes,
      .results = results,
      .differentiable = false,
  });
}

double byte(double x) { return x - 256 * std::floor(x / 256); }

void add_bytes(OpTable& table) {
  const InputSpec left{{3, 65}, transposed, 0, 256}, right{{65}, contiguous, 0, 256};
  const auto both = [&](const char* op, Tensor (*run)(const Tensor&, const Tensor&),
                        double (*formula)(double, double)) {
    add(
        table, op, "uint8", {left, right}, [run](const Tensors& x) { return run(x[0], x[1]); },
        [formula](const Arrays& x) {
          return zip(x[0], x[1], [&](double a, double b) { return byte(formula(a, b)); });
        },
        {DType::uint8});
  };
  both("add", sash::add, [](double a, double b) { return a + b; });
  both("sub", sub, [](double a, double b) { return a - b; });
  both("mul", mul, [](double a, double b) { return a * b; });
  both("maximum", maximum, [](double a, double b) { return std::max(a, b); });
  const auto written = [&](const char* op, Tensor& (Tensor::*write)(const Tensor&),
                           double (*formula)(double, double)) {
    add(
        table, op, "uint8", {left, right},
        [write](const Tensors& x) {
          Tensor y = x[0].clone();
          return (y.*write)(x[1]);
        },
        [formula](const Arrays& x) {
          return zip(x[0], x[1], [&](double a, double b) { return byte(formula(a, b)); });
        },
        {DType::uint8});
  };
  written("sub_", &Tensor::sub_, [](double a, double b) { return a - b; });
  written("mul_", &Tensor::mul_, [](double a, double b) { return a * b; });
}

void add_bools(OpTable& table) {
  const InputSpec left{{4, 9}, contiguous, 0, 2}, right{{4, 9}, transposed, 0, 2};
  add(
      table, "add", "bool", {left, right}, [](const Tensors& x) { return x[0] + x[1]; },
      [](const Arrays& x) {
        return zip(x[0], x[1], [](double a, double b) { return std::max(a, b); });
      },
      {DType::boolean});
  add(
      table, "mul_", "bool", {left, right},
      [](const Tensors& x) {
        Tensor y = x[0].clone();
        return y.mul_(x[1]);
      },
      [](const Arrays& x) { return zip(x[0], x[1], [](double a, double b) { return a * b; }); },
      {DType::boolean});
}

void add_powers(OpTable& table) {
  for (const int exponent : {0, 1, 2, 3, 5}) {
    add(
        table, "pow", "integers to " + std::to_string(exponent), {{{5, 13}, sliced, -7, 8}},
        [exponent](const Tensors& x) { return pow(x[0], exponent); },
        [exponent](const Arrays& x) {
          return map(x[0], [exponent](double a) { return std::pow(a, exponent); });
        },
        kWide);
  }
  add(
      table, "pow", "integers", {{{5, 13}, contiguous, -7, 8}, {{13}, contiguous, 0, 10}},
      [](const Tensors& x) { return pow(x[0], x[1]); },
      [](const Arrays& x) {
        return zip(x[0], x[1], [](double a, double b) { return std::pow(a, b); });
      },
      kWide);
}

void add_sums(OpTable& table) {
  const std::vector<std::pair<InputSpec, int64_t>> inputs{
      {{{7}, contiguous, 0, 9}, 0},        {{{3, 5003}, contiguous, 0, 9}, 1},
      {{{65, 300}, contiguous, 0, 9}, 0},  {{{2, 3, 4}, heads, 0, 9}, 1},
      {{{20000, 9}, contiguous, 0, 9}, 1}, {{{0, 3}, contiguous, 0, 9}, 0},
  };
  for (const auto& [input, axis] : inputs) {
    add(
        table, "cumsum", "integers, axis " + std::to_string(axis) + " of " + describe(input),
        {input}, [axis = axis](const Tensors& x) { return cumsum(x[0], axis); },
        [axis = axis](const Arrays& x) {
          return map_lines(x[0], static_cast<int>(axis), [](std::vector<double> line) {
            for (size_t i = 1; i < line.size(); ++i) line[i] += line[i - 1];
            return line;
          });
        },
        kIntegers, {DType::int64});
  }
  add(
      table, "amax", "uint8", {{{3, 65}, contiguous, 0, 256}},
      [](const Tensors& x) { return amax(x[0], {1}); },
      [](const Arrays& x) {
        return generate({3}, [&](const Index& at) {
          const std::vector<double> all = line(x[0], {at[0], 0}, 1);
          return *std::max_element(all.begin(), all.end());
        });
      },
      {DType::uint8});
}

void add_products(OpTable& table) {
  const std::vector<std::pair<InputSpec, InputSpec>> factors{
      {{{3, 4}}, {{4, 2}}},
      {{{5}}, {{5}}},
      {{{2, 3, 4}}, {{4}}},
      {{{63, 65}, transposed}, {{65, 64}}},
      {{{63, 65}}, {{65, 130}, transposed}},
      {{{3, 4}, sliced}, {{4, 2}, padded}},
      {{{2, 1, 3, 2}}, {{3, 2, 2}}},
      {{{2, 3, 2, 4}, heads}, {{2, 3, 4, 2}, heads}},
      {{{300, 257}}, {{257, 31}}},
      {{{2, 0}}, {{0, 3}}},
      {{{0, 3}}, {{3, 2}}},
  };
  for (auto [left, right] : factors) {
    left.low = right.low = 0;
    left.high = right.high = 9;
    add(
        table, "matmul", "integers, " + describe(left) + " and " + describe(right), {left, right},
        [](const Tensors& x) { return matmul(x[0], x[1]); },
        [](const Arrays& x) { return matmul(x[0], x[1]); }, kWide);
    add(
        table, "matmul", "uint8, " + describe(left) + " and " + describe(right), {left, right},
        [](const Tensors& x) { return matmul(x[0], x[1]); },
        [](const Arrays& x) { return map(matmul(x[0], x[1]), byte); }, {DType::uint8});
  }
}

}  // namespace

void add_integer_arithmetic(OpTable& table) {
  add_bytes(table);
  add_bools(table);
  add_powers(table);
  add_sums(table);
  add_products(table);
}

}  // namespace sash::testing
