#include <sash/ops/elementwise/compare.h>
#include <sash/ops/shape/concat.h>
#include <sash/tensor/factories.h>

#include "../cases.h"

namespace sash::testing {
namespace {

using Formula = double (*)(double, double);

struct Comparison {
  std::string name;
  Tensor (*tensors)(const Tensor&, const Tensor&);
  Tensor (*scalar)(const Tensor&, Scalar);
  Formula formula;
};

std::vector<Comparison> comparisons() {
  return {
      {op::Eq::row.name, eq, eq, [](double a, double b) { return double(a == b); }},
      {op::Ne::row.name, ne, ne, [](double a, double b) { return double(a != b); }},
      {op::Lt::row.name, lt, lt, [](double a, double b) { return double(a < b); }},
      {op::Le::row.name, le, le, [](double a, double b) { return double(a <= b); }},
      {op::Gt::row.name, gt, gt, [](double a, double b) { return double(a > b); }},
      {op::Ge::row.name, ge, ge, [](double a, double b) { return double(a >= b); }},
  };
}

const std::vector<DType> kComparable{DType::float32, DType::float64, DType::int32,
                                     DType::int64,   DType::uint8,   DType::boolean};

void add_row(OpTable& table, const std::string& name, std::vector<InputSpec> inputs,
             std::function<Several<Tensor>(const Tensors&)> run, Formula formula,
             std::vector<DType> dtypes) {
  std::string variant;
  for (const InputSpec& input : inputs)
    variant += (variant.empty() ? "" : " and ") + describe(input);
  if (!inputs[0].elements.empty()) variant += ", NaN";
  table.push_back({
      .op = name,
      .variant = variant,
      .inputs = std::move(inputs),
      .run = std::move(run),
      .reference =
          [formula](const Arrays& x) {
            return zip(x[0], x.size() > 1 ? x[1] : Array({}, 1), formula);
          },
      .dtypes = std::move(dtypes),
      .results = {DType::boolean},
      .differentiable = false,
  });
}

void add_comparison(OpTable& table, const Comparison& op) {
  const auto run = [f = op.tensors](const Tensors& x) { return f(x[0], x[1]); };
  const InputSpec base{.shape = {5, 13}, .low = 0, .high = 4};
  const auto with = [&](Shape shape, Layout layout = Layout::contiguous) {
    InputSpec spec = base;
    spec.shape = shape;
    spec.layout = layout;
    return spec;
  };
  add_row(table, op.name, {base, base}, run, op.formula, kComparable);
  add_row(table, op.name, {with({3, 1}), with({1, 65})}, run, op.formula, kComparable);
  add_row(table, op.name, {with({0}), with({1})}, run, op.formula, kComparable);
  add_row(table, op.name, {with({4, 5}, Layout::transposed), with({4, 5}, Layout::sliced)}, run,
          op.formula, kComparable);
  add_row(table, op.name,
          {{.shape = {4}, .elements = {kNaN, 1, kNaN, 2}},
           {.shape = {4}, .elements = {kNaN, kNaN, 3, 2}}},
          run, op.formula, {DType::float32, DType::float64});
  const auto run_scalar = [f = op.scalar](const Tensors& x) { return f(x[0], 1); };
  add_row(table, op.name, {with({7, 9})}, run_scalar, op.formula,
          {DType::float32, DType::float64, DType::int32, DType::int64, DType::uint8});

  // Operands of two dtypes, and scalars that the tensor's dtype does not hold.
  const InputSpec bytes{.shape = {5, 13}, .low = 0, .high = 256, .dtype = DType::uint8};
  const InputSpec floats{.shape = {13}, .low = 0, .high = 256};
  const auto mixed = [&](const std::string& variant, std::vector<InputSpec> inputs, auto f,
                         Formula formula) {
    add_row(table, op.name, std::move(inputs), f, formula, {DType::float32, DType::float64});
    table.back().variant += ", " + variant;
  };
  mixed("uint8 and floating", {bytes, floats}, run, op.formula);
  mixed("floating and uint8", {floats, bytes}, run, op.formula);
  const auto with_scalar = [&](const char* variant, Scalar value) {
    mixed(
        variant, {bytes}, [f = op.scalar, value](const Tensors& x) { return f(x[0], value); },
        nullptr);
    table.back().reference = [formula = op.formula, value](const Arrays& x) {
      return map(x[0], [&](double a) { return formula(a, value.to_double()); });
    };
  };
  with_scalar("uint8 and 256", 256);
  with_scalar("uint8 and -1", -1);
  with_scalar("uint8 and 100.5", 100.5);
}

struct Operator {
  std::string name;
  Tensor (*tensors)(const Tensor&, const Tensor&);
  Tensor (*right)(const Tensor&);
  Tensor (*left)(const Tensor&);
  Formula formula;
};

std::vector<Operator> operators() {
  using T = const Tensor&;
  return {
      {"operator==", [](T a, T b) { return a == b; }, [](T x) { return x == 1; },
       [](T x) { return 2 == x; }, [](double a, double b) { return double(a == b); }},
      {"operator!=", [](T a, T b) { return a != b; }, [](T x) { return x != 1; },
       [](T x) { return 2 != x; }, [](double a, double b) { return double(a != b); }},
      {"operator<", [](T a, T b) { return a < b; }, [](T x) { return x < 1; },
       [](T x) { return 2 < x; }, [](double a, double b) { return double(a < b); }},
      {"operator<=", [](T a, T b) { return a <= b; }, [](T x) { return x <= 1; },
       [](T x) { return 2 <= x; }, [](double a, double b) { return double(a <= b); }},
      {"operator>", [](T a, T b) { return a > b; }, [](T x) { return x > 1; },
       [](T x) { return 2 > x; }, [](double a, double b) { return double(a > b); }},
      {"operator>=", [](T a, T b) { return a >= b; }, [](T x) { return x >= 1; },
       [](T x) { return 2 >= x; }, [](double a, double b) { return double(a >= b); }},
  };
}

void add_operator(OpTable& table, const Operator& op) {
  const InputSpec whole{.shape = {3, 7}, .low = 0, .high = 4, .dtype = DType::int64};
  const InputSpec row{.shape = {7}, .low = 0, .high = 4, .dtype = DType::int64};
  const std::vector<DType> once{DType::float32};
  const auto add = [&](const char* variant, std::vector<InputSpec> inputs, auto run,
                       const std::function<Array(const Arrays&)>& reference) {
    add_row(table, op.name, std::move(inputs), run, op.formula, once);
    table.back().variant = variant;
    table.back().reference = reference;
  };
  add(
      "tensors", {whole, row}, [f = op.tensors](const Tensors& x) { return f(x[0], x[1]); },
      [f = op.formula](const Arrays& x) { return zip(x[0], x[1], f); });
  add(
      "x and 1", {whole}, [f = op.right](const Tensors& x) { return f(x[0]); },
      [f = op.formula](const Arrays& x) { return map(x[0], [f](double a) { return f(a, 1); }); });
  add(
      "2 and x", {whole}, [f = op.left](const Tensors& x) { return f(x[0]); },
      [f = op.formula](const Arrays& x) { return map(x[0], [f](double a) { return f(2, a); }); });
}

}  // namespace

void add_compare(OpTable& table) {
  for (const Comparison& op : comparisons()) add_comparison(table, op);
  for (const Operator& op : operators()) add_operator(table, op);

  const InputSpec bits{.shape = {5, 7}, .low = 0, .high = 2, .dtype = DType::boolean};
  const InputSpec row{.shape = {7}, .low = 0, .high = 2, .dtype = DType::boolean};
  const std::vector<DType> once{DType::float32};
  add_row(
      table, "logical_and", {bits, row}, [](const Tensors& x) { return logical_and(x[0], x[1]); },
      [](double a, double b) { return double(a != 0 && b != 0); }, once);
  add_row(
      table, "logical_or", {bits, row}, [](const Tensors& x) { return logical_or(x[0], x[1]); },
      [](double a, double b) { return double(a != 0 || b != 0); }, once);
  add_row(
      table, "logical_not", {bits}, [](const Tensors& x) { return logical_not(x[0]); },
      [](double a, double) { return double(a == 0); }, once);
  add_row(
      table, "operator&", {bits, row}, [](const Tensors& x) { return x[0] & x[1]; },
      [](double a, double b) { return double(a != 0 && b != 0); }, once);
  add_row(
      table, "operator|", {bits, row}, [](const Tensors& x) { return x[0] | x[1]; },
      [](double a, double b) { return double(a != 0 || b != 0); }, once);
  add_row(
      table, "operator~", {bits}, [](const Tensors& x) { return ~x[0]; },
      [](double a, double) { return double(a == 0); }, once);
  add_row(
      table, "isfinite", {{.shape = {4}, .elements = {kNaN, 1, kInfinity, -kInfinity}}},
      [](const Tensors& x) { return isfinite(x[0]); },
      [](double a, double) { return double(std::isfinite(a)); }, {DType::float32, DType::float64});
  add_row(
      table, "isinf", {{.shape = {4}, .elements = {kNaN, 1, kInfinity, -kInfinity}}},
      [](const Tensors& x) { return isinf(x[0]); },
      [](double a, double) { return double(std::isinf(a)); }, {DType::float32, DType::float64});
  const InputSpec left{.shape = {3, 5},
                       .elements = {0, 1, 1, kNaN, kInfinity,  //
                                    2, kInfinity, 1, 1, 100,   //
                                    0, 5, -0.0, 3, -kInfinity}};
  const InputSpec right{.shape = {5}, .elements = {0.001, 1.5, 1.0625, kNaN, kInfinity}};
  for (const bool equal_nan : {false, true}) {
    const CloseOptions options{.rtol = 0.0625, .atol = 0.25, .equal_nan = equal_nan};
    const auto close = [equal_nan](double a, double b) {
      const bool near = std::isfinite(a - b) && std::abs(a - b) <= 0.25 + 0.0625 * std::abs(b);
      return double(a == b || near || (equal_nan && std::isnan(a) && std::isnan(b)));
    };
    const std::string variant = equal_nan ? "NaN is close to NaN" : "NaN is not close to NaN";
    const auto add = [&](const char* op, auto run, auto reference) {
      table.push_back({.op = op,
                       .variant = variant,
                       .inputs = {left, right},
                       .run = run,
                       .reference = reference,
                       .results = {DType::boolean},
                       .differentiable = false});
    };
    add(
        "isclose", [options](const Tensors& x) { return isclose(x[0], x[1], options); },
        [close](const Arrays& x) { return zip(x[0], x[1], close); });
    add(
        "allclose",
        [options](const Tensors& x) {
          return stack({tensor(allclose(x[0], x[1], options), {.device = x[0].device()}),
                        tensor(allclose(x[1], x[1], options), {.device = x[0].device()})});
        },
        [equal_nan](const Arrays&) {
          Array y(Shape{2});
          y.values[1] = equal_nan;
          return y;
        });
  }
  add_row(
      table, "isnan", {{.shape = {3}, .elements = {kNaN, 1, kInfinity}}},
      [](const Tensors& x) { return isnan(x[0]); },
      [](double a, double) { return double(std::isnan(a)); }, {DType::float32, DType::float64});
}

}  // namespace sash::testing
