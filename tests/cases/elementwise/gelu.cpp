#include <sash/ops/elementwise/gelu.h>

#include "../cases.h"

namespace sash::testing {
namespace {

double exact(double x) { return x * (1 + std::erf(x / std::sqrt(2.0))) / 2; }

double by_tanh(double x) {
  const double pi = 3.14159265358979323846;
  return x * (1 + std::tanh(std::sqrt(2 / pi) * (x + 0.044715 * x * x * x))) / 2;
}

using Function = Tensor (*)(const Tensor&, GeluApproximation);

void add_cases(OpTable& table, const std::string& kind, Function f, GeluApproximation how,
               double (*formula)(double)) {
  const auto add = [&](InputSpec input) {
    input.low = -4;
    input.high = 4;
    table.push_back({
        .op = "gelu",
        .variant = kind + describe(input),
        .inputs = {input},
        .run = [=](const Tensors& x) { return f(x[0], how); },
        .reference = [=](const Arrays& x) { return map(x[0], formula); },
        .half_rounds = kind[0] == 'c' ? 4.0 : 1,  // composite
        .half_gradient_rounds = kind[0] == 'c' ? 4.0 : 1,
        .half_gradient_scale = kind[0] == 'c' ? 1.0 : 0,
    });
  };
  add({.shape = {}});
  add({.shape = {0}});
  add({.shape = {3, 5}});
  add({.shape = {65, 130}});
  add({.shape = {4, 3}, .layout = Layout::transposed});
  add({.shape = {2, 7}, .layout = Layout::sliced});
  add({.shape = {3, 4}, .layout = Layout::expanded});
  table.push_back({
      .op = "gelu",
      .variant = kind + "extremes",
      .inputs = {{.shape = {6}, .elements = {kNaN, kInfinity, 40, -40, 0, -9}}},
      .run = [=](const Tensors& x) { return f(x[0], how); },
      .reference = [=](const Arrays& x) { return map(x[0], formula); },
      .differentiable = false,
  });
}

}  // namespace

void add_gelu(OpTable& table) {
  using enum GeluApproximation;
  add_cases(table, "exact, ", gelu, none, exact);
  add_cases(table, "tanh, ", gelu, tanh, by_tanh);
  add_cases(table, "composite, exact, ", composite::gelu, none, exact);
  add_cases(table, "composite, tanh, ", composite::gelu, tanh, by_tanh);
  const double n = 1024.0 * 1024;
  table.push_back({
      .op = "gelu",
      .variant = "timed [1024, 1024]",
      .inputs = {{.shape = {1024, 1024}}},
      .run = [](const Tensors& x) { return gelu(x[0]); },
      .reference = [](const Arrays& x) { return map(x[0], exact); },
      .dtypes = {DType::float32},
      .timed = true,
      .operations = 10 * n,
      .bytes = 8 * n,
  });
}

}  // namespace sash::testing
