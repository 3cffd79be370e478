#include <sash/ops/elementwise/binary.h>

#include <algorithm>

#include "../cases.h"

namespace sash::testing {
namespace {

struct BinaryOp {
  std::string name;
  Tensor (*run)(const Tensor&, const Tensor&);
  double (*formula)(double, double);
  std::vector<DType> dtypes;
  double low = -9, high = 9;              // of the left operand
  double right_low = -9, right_high = 9;  // of the right one
};

/// Name and dtypes are the table's; the formula is not, so that it checks the table's.
template <class Op>
BinaryOp row(Tensor (*run)(const Tensor&, const Tensor&), double (*formula)(double, double)) {
  return {Op::row.name, run, formula, dtypes_of(Op::row.dtypes)};
}
template <class Op>
BinaryOp row(Tensor (*run)(const Tensor&, const Tensor&), double (*formula)(double, double),
             double low, double high, double right_low, double right_high) {
  return {Op::row.name, run, formula, dtypes_of(Op::row.dtypes), low, high, right_low, right_high};
}

double greater(double a, double b) {
  return std::isnan(a) || std::isnan(b) ? kNaN : std::max(a, b);
}
double lesser(double a, double b) { return std::isnan(a) || std::isnan(b) ? kNaN : std::min(a, b); }

double rest(double a, double b) {
  const double r = std::fmod(a, b);
  return r != 0 && std::signbit(r) != std::signbit(b) ? r + b : r;
}

double floor_quotient(double a, double b) {
  if (std::isinf(a)) return kNaN;
  return std::isinf(b) ? 0 : std::floor(a / b);
}

std::vector<BinaryOp> binary_ops() {
  const auto plus = [](double a, double b) { return a + b; };
  const auto minus = [](double a, double b) { return a - b; };
  const auto times = [](double a, double b) { return a * b; };
  const auto over = [](double a, double b) { return a / b; };
  const auto power = [](double a, double b) { return std::pow(a, b); };
  const auto angle = [](double a, double b) { return std::atan2(a, b); };
  return {
      row<op::Add>(add, plus),
      row<op::Sub>(sub, minus),
      row<op::Mul>(mul, times),
      row<op::Div>(div, over, -2, 2, 0.5, 2),
      row<op::Pow>(pow, power, 0.5, 2, -2, 2),
      row<op::Atan2>(atan2, angle, 0.5, 3, -3, 3),
      row<op::Remainder>(remainder, rest, -9, 9, 1.2, 5),
      row<op::FloorDivide>(floor_divide, floor_quotient, -9, 9, 1.2, 5),
      row<op::Maximum>(maximum, greater),
      row<op::Minimum>(minimum, lesser),
  };
}

std::vector<std::pair<InputSpec, InputSpec>> pairs() {
  return {
      {{.shape = {7}}, {.shape = {7}}},
      {{.shape = {}}, {.shape = {3}}},
      {{.shape = {}}, {.shape = {}}},
      {{.shape = {3, 1}}, {.shape = {1, 4}}},
      {{.shape = {4}}, {.shape = {2, 3, 4}}},
      {{.shape = {2, 1, 3, 1}}, {.shape = {5, 1, 2}}},
      {{.shape = {0, 3}}, {.shape = {1, 3}}},
      {{.shape = {5, 63}}, {.shape = {5, 1}}},
      {{.shape = {65, 64}}, {.shape = {64}}},
      {{.shape = {130, 65}, .layout = Layout::transposed}, {.shape = {130, 65}}},
      {{.shape = {4, 5}, .layout = Layout::transposed}, {.shape = {4, 5}}},
      {{.shape = {3, 6}, .layout = Layout::sliced}, {.shape = {3, 6}, .layout = Layout::padded}},
      {{.shape = {2, 3, 4}, .layout = Layout::heads},
       {.shape = {2, 3, 4}, .layout = Layout::expanded}},
      {{.shape = {1}, .layout = Layout::sliced}, {.shape = {6}, .layout = Layout::sliced}},
  };
}

void add_pairs(OpTable& table, const BinaryOp& op) {
  for (auto [left, right] : pairs()) {
    left.low = op.low;
    left.high = op.high;
    right.low = op.right_low;
    right.high = op.right_high;
    table.push_back({
        .op = op.name,
        .variant = describe(left) + " and " + describe(right),
        .inputs = {left, right},
        .run = [f = op.run](const Tensors& x) { return f(x[0], x[1]); },
        .reference = [f = op.formula](const Arrays& x) { return zip(x[0], x[1], f); },
        .dtypes = op.dtypes,
        .half_gradient_rounds = 4,  // products, before they are summed to the operand's shape
        .half_gradient_scale = op.high,
    });
  }
}

template <class Run>
void add_operator(OpTable& table, const char* name, const char* variant, Run run,
                  double (*formula)(double, double), bool two_tensors) {
  const InputSpec positive{.shape = {3, 5}, .low = 0.5, .high = 3};
  OpCase row{
      .op = name,
      .variant = variant,
      .inputs = {positive},
      .run = run,
      .reference =
          [formula](const Arrays& x) { return zip(x[0], x.size() > 1 ? x[1] : x[0], formula); },
      .half_rounds = 2,
      .half_gradient_rounds = 4};
  if (two_tensors) row.inputs.push_back(positive);
  table.push_back(std::move(row));
}

void add_operators(OpTable& table) {
  const auto with_tensor = [&](const char* name, auto run, double (*formula)(double, double)) {
    add_operator(table, name, "tensors", run, formula, true);
  };
  const auto with_scalar = [&](const char* name, const char* variant, auto run,
                               double (*formula)(double, double)) {
    add_operator(table, name, variant, run, formula, false);
  };
  using T = Tensors;
  with_tensor(
      "operator+", [](const T& x) { return x[0] + x[1]; },
      [](double a, double b) { return a + b; });
  with_tensor(
      "operator-", [](const T& x) { return x[0] - x[1]; },
      [](double a, double b) { return a - b; });
  with_tensor(
      "operator*", [](const T& x) { return x[0] * x[1]; },
      [](double a, double b) { return a * b; });
  with_tensor(
      "operator/", [](const T& x) { return x[0] / x[1]; },
      [](double a, double b) { return a / b; });
  with_tensor(
      "operator%", [](const T& x) { return x[0] % x[1]; },
      [](double a, double b) { return std::fmod(a, b); });
  with_scalar(
      "operator%", "x and 0.75", [](const T& x) { return x[0] % 0.75; },
      [](double a, double) { return std::fmod(a, 0.75); });
  with_scalar(
      "operator%", "7.5 and x", [](const T& x) { return 7.5 % x[0]; },
      [](double a, double) { return std::fmod(7.5, a); });
  with_scalar(
      "operator+", "x and 1.5", [](const T& x) { return x[0] + 1.5; },
      [](double a, double) { return a + 1.5; });
  with_scalar(
      "operator-", "x and 1.5", [](const T& x) { return x[0] - 1.5; },
      [](double a, double) { return a - 1.5; });
  with_scalar(
      "operator*", "x and 1.5", [](const T& x) { return x[0] * 1.5; },
      [](double a, double) { return a * 1.5; });
  with_scalar(
      "operator/", "x and 1.5", [](const T& x) { return x[0] / 1.5; },
      [](double a, double) { return a / 1.5; });
  with_scalar(
      "operator+", "2.5 and x", [](const T& x) { return 2.5 + x[0]; },
      [](double a, double) { return 2.5 + a; });
  with_scalar(
      "operator-", "2.5 and x", [](const T& x) { return 2.5 - x[0]; },
      [](double a, double) { return 2.5 - a; });
  with_scalar(
      "operator*", "2.5 and x", [](const T& x) { return 2.5 * x[0]; },
      [](double a, double) { return 2.5 * a; });
  with_scalar(
      "operator/", "2.5 and x", [](const T& x) { return 2.5 / x[0]; },
      [](double a, double) { return 2.5 / a; });
}

void add_special_values(OpTable& table) {
  const InputSpec left{.shape = {6}, .elements = {kNaN, 1, kInfinity, -kInfinity, 2, 2}};
  const InputSpec right{.shape = {6}, .elements = {1, kNaN, 3, 3, kInfinity, 2}};
  for (const BinaryOp& op : binary_ops()) {
    table.push_back({
        .op = op.name,
        .variant = "NaN, infinities and ties",
        .inputs = {left, right},
        .run = [f = op.run](const Tensors& x) { return f(x[0], x[1]); },
        .reference = [f = op.formula](const Arrays& x) { return zip(x[0], x[1], f); },
        .differentiable = false,
    });
  }
}

// Operands of two dtypes, computed in the floating one's.
void add_mixed(OpTable& table) {
  for (const BinaryOp& op : binary_ops()) {
    for (const DType other : {DType::int64, DType::uint8, DType::boolean, DType::float32}) {
      InputSpec left{.shape = {3, 4}, .low = op.low, .high = op.high};
      const bool divides = op.right_low > 0 || op.name == "pow";
      InputSpec right{.shape = {4}, .low = 0, .high = 5, .dtype = other, .requires_grad = false};
      if (divides) right.low = 1;
      if (divides && other == DType::boolean) right.elements = {1, 1, 1, 1};
      const bool floating = other == DType::float32;
      for (const bool swapped : {false, true}) {
        if (swapped && divides) continue;
        table.push_back({
            .op = op.name,
            .variant = std::string(swapped ? "after " : "with ") + std::string(name(other)),
            .inputs = {left, right},
            .run = [f = op.run,
                    swapped](const Tensors& x) { return swapped ? f(x[1], x[0]) : f(x[0], x[1]); },
            .reference =
                [f = op.formula, swapped](const Arrays& x) {
                  return swapped ? zip(x[1], x[0], f) : zip(x[0], x[1], f);
                },
            .dtypes = floating ? std::vector<DType>{DType::float64} : kFloats,
            .half_gradient_rounds = 4,
            .half_gradient_scale = std::max(op.high, 5.0),
        });
      }
    }
  }
}

// Integers, whose result is float32.
void add_integers(OpTable& table) {
  const auto add = [&](const char* name, const char* variant, auto run,
                       double (*formula)(double, double)) {
    table.push_back({
        .op = name,
        .variant = variant,
        .inputs = {{.shape = {3, 5}, .low = 1, .high = 99}, {.shape = {5}, .low = 1, .high = 99}},
        .run = run,
        .reference = [formula](const Arrays& x) { return zip(x[0], x[1], formula); },
        .dtypes = {DType::int32, DType::int64, DType::uint8},
        .results = {DType::float32},
        .tolerance64 = 1e-6,
        .differentiable = false,
    });
  };
  using T = Tensors;
  add(
      "div", "integers", [](const T& x) { return div(x[0], x[1]); },
      [](double a, double b) { return a / b; });
  add(
      "div", "integers and 49.0", [](const T& x) { return div(x[0], 49.0) + x[1]; },
      [](double a, double b) { return a / 49 + b; });
  add(
      "operator*", "integers and 0.5", [](const T& x) { return x[0] * 0.5 + x[1]; },
      [](double a, double b) { return a * 0.5 + b; });
  add(
      "operator-", "0.5 and integers", [](const T& x) { return 0.5 - x[0] - x[1]; },
      [](double a, double b) { return 0.5 - a - b; });
  add(
      "operator/", "3 and integers", [](const T& x) { return 3 / x[0] + x[1]; },
      [](double a, double b) { return 3 / a + b; });
}

// a and b are one tensor: both of its gradients must arrive.
void add_shared_operand(OpTable& table) {
  table.push_back({
      .op = "mul",
      .variant = "x x",
      .inputs = {{.shape = {4, 3}}},
      .run = [](const Tensors& x) { return mul(x[0], x[0]); },
      .reference = [](const Arrays& x) { return map(x[0], [](double a) { return a * a; }); },
  });
}

void add_timed(OpTable& table) {
  const double n = 4096.0 * 1024;
  table.push_back({
      .op = "add",
      .variant = "timed [4096, 1024] and [1024]",
      .inputs = {{.shape = {4096, 1024}}, {.shape = {1024}}},
      .run = [](const Tensors& x) { return add(x[0], x[1]); },
      .reference =
          [](const Arrays& x) { return zip(x[0], x[1], [](double a, double b) { return a + b; }); },
      .dtypes = {DType::float32},
      .timed = true,
      .operations = n,
      .bytes = 8 * n,
  });
}

}  // namespace

void add_binary(OpTable& table) {
  for (const BinaryOp& op : binary_ops()) add_pairs(table, op);
  add_operators(table);
  add_special_values(table);
  add_mixed(table);
  add_integers(table);
  add_shared_operand(table);
  add_timed(table);
}

}  // namespace sash::testing
