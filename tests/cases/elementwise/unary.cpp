#include <sash/ops/elementwise/binary.h>
#include <sash/ops/elementwise/unary.h>

#include <algorithm>

#include "../cases.h"

namespace sash::testing {
namespace {

/// An op, and where its derivative is smooth: in [low, high) but for the kinks.
struct UnaryOp {
  std::string name;
  std::function<Tensor(const Tensor&)> run;
  std::function<double(double)> formula;
  double low = -2, high = 2;
  std::vector<double> kinks{};
  std::vector<DType> dtypes = kFloats;
  std::string option{};
  bool takes_integers = false;  ///< which it casts to float32
};

struct Domain {
  double low = -2, high = 2;
  std::vector<double> kinks{};
};

/// Name and dtypes are the table's; the formula is not, so that it checks the table's.
template <class Op>
UnaryOp row(Tensor (*run)(const Tensor&), const Domain& in, double (*formula)(double)) {
  UnaryOp op{Op::row.name, run, formula, in.low, in.high, in.kinks, dtypes_of(Op::row.dtypes)};
  op.takes_integers = Op::row.dtypes == op::Dtypes::cast_to_floating;
  return op;
}

double sign_of(double x) { return std::isnan(x) ? x : double(x > 0) - double(x < 0); }
double sigmoid_of(double x) { return 1 / (1 + std::exp(-x)); }

std::vector<UnaryOp> functions() {
  return {
      row<op::Neg>(neg, {-9, 9}, [](double x) { return -x; }),
      row<op::Abs>(abs, {-9, 9, {0}}, [](double x) { return std::abs(x); }),
      row<op::Sign>(sign, {-9, 9, {0}}, sign_of),
      row<op::Square>(square, {-9, 9}, [](double x) { return x * x; }),
      row<op::Exp>(exp, {}, [](double x) { return std::exp(x); }),
      row<op::Log>(log, {0.2, 5}, [](double x) { return std::log(x); }),
      row<op::Log2>(log2, {0.2, 5}, [](double x) { return std::log2(x); }),
      row<op::Log1p>(log1p, {-0.7, 3}, [](double x) { return std::log1p(x); }),
      row<op::Expm1>(expm1, {}, [](double x) { return std::expm1(x); }),
      row<op::Sqrt>(sqrt, {0.2, 5}, [](double x) { return std::sqrt(x); }),
      row<op::Rsqrt>(rsqrt, {0.2, 5}, [](double x) { return 1 / std::sqrt(x); }),
      row<op::Reciprocal>(reciprocal, {0.3, 3}, [](double x) { return 1 / x; }),
      row<op::Sin>(sin, {-7, 7}, [](double x) { return std::sin(x); }),
      row<op::Cos>(cos, {-7, 7}, [](double x) { return std::cos(x); }),
      row<op::Tanh>(tanh, {-4, 4}, [](double x) { return std::tanh(x); }),
      row<op::Sigmoid>(sigmoid, {-6, 6}, sigmoid_of),
      row<op::Erf>(erf, {-3, 3}, [](double x) { return std::erf(x); }),
      row<op::Relu>(relu, {-2, 2, {0}},
                    [](double x) { return std::isnan(x) ? x : std::max(x, 0.0); }),
      row<op::Silu>(silu, {-5, 5},
                    [](double x) { return std::isinf(x) && x < 0 ? kNaN : x * sigmoid_of(x); }),
      row<op::Softplus>(
          softplus, {-9, 9},
          [](double x) { return std::log1p(std::exp(-std::abs(x))) + std::max(x, 0.0); }),
      row<op::Ceil>(ceil, {-5, 5, {-4, -3, -2, -1, 0, 1, 2, 3}},
                    [](double x) { return std::ceil(x); }),
      row<op::Round>(round, {-3, 3, {-2.5, -1.5, -0.5, 0.5, 1.5, 2.5}},
                     [](double x) { return std::nearbyint(x); }),
      row<op::Floor>(floor, {-5, 5, {-4, -3, -2, -1, 0, 1, 2, 3}},
                     [](double x) { return std::floor(x); }),
  };
}

double clamped(double x, double low, double high) {
  return std::isnan(x) ? x : std::min(std::max(x, low), high);
}

std::vector<UnaryOp> functions_with_options() {
  return {
      {"add",
       [](const Tensor& x) { return add(x, 3); },
       [](double x) { return x + 3; },
       -9,
       9,
       {},
       kNumbers,
       "3, "},
      {"mul",
       [](const Tensor& x) { return mul(x, -2); },
       [](double x) { return x * -2; },
       -9,
       9,
       {},
       kNumbers,
       "-2, "},
      {"mul",
       [](const Tensor& x) { return mul(x, 0.3); },
       [](double x) { return x * 0.3; },
       -9,
       9,
       {},
       {DType::float64},
       "0.3, "},
      {"pow",
       [](const Tensor& x) { return pow(x, 3); },
       [](double x) { return x * x * x; },
       -2,
       2,
       {},
       kFloats,
       "3, "},
      {"pow",
       [](const Tensor& x) { return pow(x, -1.5); },
       [](double x) { return std::pow(x, -1.5); },
       0.3,
       2,
       {},
       kFloats,
       "-1.5, "},
      {"div",
       [](const Tensor& x) { return div(x, 49.0); },
       [](double x) { return x / 49; },
       -9,
       9,
       {},
       kFloats,
       "49, "},
      {"remainder",
       [](const Tensor& x) { return remainder(x, 3); },
       [](double x) { return x - 3 * std::floor(x / 3); },
       -9,
       9,
       {-9, -6, -3, 0, 3, 6},
       kNumbers,
       "3, "},
      {"remainder",
       [](const Tensor& x) { return x % -2; },
       [](double x) { return x + 2 * std::floor(x / -2); },
       -5,
       5,
       {-4, -2, 0, 2, 4},
       kNumbers,
       "-2, "},
      {"floor_divide",
       [](const Tensor& x) { return floor_divide(x, -2); },
       [](double x) { return std::floor(x / -2); },
       -5,
       5,
       {-4, -2, 0, 2, 4},
       kNumbers,
       "-2, "},
      {"maximum",
       [](const Tensor& x) { return maximum(x, 1); },
       [](double x) { return std::isnan(x) ? x : std::max(x, 1.0); },
       -4,
       4,
       {1},
       kNumbers,
       "1, "},
      {"minimum",
       [](const Tensor& x) { return minimum(x, -1); },
       [](double x) { return std::isnan(x) ? x : std::min(x, -1.0); },
       -4,
       4,
       {-1},
       kNumbers,
       "-1, "},
      {"pow",
       [](const Tensor& x) { return pow(3, x); },
       [](double x) { return std::pow(3, x); },
       -2,
       2,
       {},
       kFloats,
       "3 to the power of "},
      {"leaky_relu",
       [](const Tensor& x) { return leaky_relu(x, 0.2); },
       [](double x) { return x > 0 ? x : 0.2 * x; },
       -3,
       3,
       {0},
       kFloats,
       "0.2, "},
      {"elu",
       [](const Tensor& x) { return elu(x, 0.7); },
       [](double x) { return x > 0 ? x : 0.7 * std::expm1(x); },
       -3,
       3,
       {0},
       kFloats,
       "0.7, "},
      {"clamp",
       [](const Tensor& x) { return clamp(x, -1, 2); },
       [](double x) { return clamped(x, -1, 2); },
       -4,
       4,
       {-1, 2},
       kNumbers,
       "-1 to 2, "},
      {"clamp",
       [](const Tensor& x) { return clamp(x, 1); },
       [](double x) { return clamped(x, 1, kInfinity); },
       -4,
       4,
       {1},
       kNumbers,
       "1 or more, "},
      {"clamp",
       [](const Tensor& x) { return clamp(x, std::nullopt, 1); },
       [](double x) { return clamped(x, -kInfinity, 1); },
       -4,
       4,
       {1},
       kNumbers,
       "1 or less, "},
  };
}

std::vector<InputSpec> specs() {
  return {
      {.shape = {}},
      {.shape = {0}},
      {.shape = {3, 5}},
      {.shape = {65, 130}},
      {.shape = {4, 3}, .layout = Layout::transposed},
      {.shape = {2, 7}, .layout = Layout::sliced},
      {.shape = {3, 4}, .layout = Layout::padded},
      {.shape = {3, 4}, .layout = Layout::expanded},
      {.shape = {2, 3, 63}, .layout = Layout::heads},
  };
}

void add_function(OpTable& table, const UnaryOp& op, InputSpec spec) {
  spec.low = op.low;
  spec.high = op.high;
  spec.kinks = op.kinks;
  table.push_back({
      .op = op.name,
      .variant = op.option + describe(spec),
      .inputs = {spec},
      .run = [run = op.run](const Tensors& x) { return run(x[0]); },
      .reference = [f = op.formula](const Arrays& x) { return map(x[0], f); },
      .dtypes = op.dtypes,
      .half_gradient_rounds = 4,
      .half_gradient_scale = 1,
  });
}

void add_integers(OpTable& table, const UnaryOp& op) {
  table.push_back({
      .op = op.name,
      .variant = "integers",
      .inputs = {{.shape = {3, 5}, .low = 1, .high = 9}},
      .run = [run = op.run](const Tensors& x) { return run(x[0]); },
      .reference = [f = op.formula](const Arrays& x) { return map(x[0], f); },
      .dtypes = {DType::int32, DType::int64, DType::uint8},
      .results = {DType::float32},
      .tolerance64 = 1e-5,
      .differentiable = false,
  });
}

void add_special_values(OpTable& table, const UnaryOp& op) {
  table.push_back({
      .op = op.name,
      .variant = op.option + "NaN, infinities and zeros",
      .inputs = {{.shape = {5}, .elements = {kNaN, kInfinity, -kInfinity, 0.0, -0.0}}},
      .run = [run = op.run](const Tensors& x) { return run(x[0]); },
      .reference = [f = op.formula](const Arrays& x) { return map(x[0], f); },
      .differentiable = false,
  });
}

}  // namespace

void add_unary(OpTable& table) {
  for (const UnaryOp& op : functions()) {
    for (const InputSpec& spec : specs()) add_function(table, op, spec);
    add_special_values(table, op);
    if (op.takes_integers) add_integers(table, op);
  }
  for (const UnaryOp& op : functions_with_options()) {
    for (const InputSpec& spec : specs()) add_function(table, op, spec);
  }
  add_function(table,
               {"operator-", [](const Tensor& x) { return -x; }, [](double x) { return -x; }},
               {.shape = {3, 4}});
}

}  // namespace sash::testing
