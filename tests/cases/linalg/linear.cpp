#include <cmath>

#include <sash/ops/linalg/linear.h>
#include <sash/ops/linalg/linear_gelu.h>

#include "../cases.h"

namespace sash::testing {
namespace {

Array linear_of(const Arrays& x) {
  const Array y = matmul(x[0], transpose(x[1], 0, 1));
  return x.size() < 3 ? y : zip(y, x[2], [](double a, double b) { return a + b; });
}

void add_case(OpTable& table, const InputSpec& x, const InputSpec& weight, bool bias) {
  std::vector<InputSpec> inputs{x, weight};
  if (bias) inputs.push_back({{weight.shape[0]}});
  table.push_back({
      .op = "linear",
      .variant = describe(x) + " and " + describe(weight) + (bias ? " with bias" : ""),
      .inputs = inputs,
      .run = [](const Tensors& t) { return linear(t[0], t[1], t.size() > 2 ? t[2] : Tensor()); },
      .reference = linear_of,
  });
}

double gelu_of(double x, GeluApproximation how) {
  if (how == GeluApproximation::none) return x * (1 + std::erf(x / std::sqrt(2.0))) / 2;
  const double pi = 3.14159265358979323846;
  return x * (1 + std::tanh(std::sqrt(2 / pi) * (x + 0.044715 * x * x * x))) / 2;
}

Array linear_gelu_of(const Arrays& x, GeluApproximation how) {
  return map(linear_of(x), [how](double z) { return gelu_of(z, how); });
}

// linear_gelu, or gelu_mlp with a second layer of `out` features; fused and from plain ops.
void add_gelu_case(OpTable& table, GeluApproximation how, const InputSpec& x,
                   const InputSpec& weight, bool bias, int64_t out = 0) {
  std::vector<InputSpec> inputs{x, weight};
  if (bias) inputs.push_back({{weight.shape[0]}});
  if (out > 0) inputs.push_back({{out, weight.shape[0]}});
  if (out > 0 && bias) inputs.push_back({{out}});
  for (const bool fused : {true, false}) {
    const auto one = fused ? linear_gelu : composite::linear_gelu;
    const auto two = fused ? gelu_mlp : composite::gelu_mlp;
    table.push_back({
        .op = out > 0 ? "gelu_mlp" : "linear_gelu",
        .variant = std::string(fused ? "" : "composite, ") +
                   (how == GeluApproximation::tanh ? "tanh, " : "exact, ") + describe(x) + " and " +
                   describe(weight) + (bias ? " with bias" : ""),
        .inputs = inputs,
        .run = [=](const Tensors& t) -> Tensor {
          const Tensor none;
          if (out == 0) return one(t[0], t[1], bias ? t[2] : none, how);
          return two(t[0], t[1], bias ? t[2] : none, t[bias ? 3 : 2], bias ? t[4] : none, how);
        },
        .reference = [=](const Arrays& t) -> Array {
          const Array hidden = linear_gelu_of({t.begin(), t.begin() + (bias ? 3 : 2)}, how);
          if (out == 0) return hidden;
          Arrays second{hidden};
          second.insert(second.end(), t.begin() + (bias ? 3 : 2), t.end());
          return linear_of(second);
        },
        .half_rounds = 4,
        .half_gradient_rounds = 8,
        .half_gradient_scale = 8,
    });
  }
}

void add_gelu_cases(OpTable& table, GeluApproximation how, int64_t out) {
  const auto add = [&](const InputSpec& x, const InputSpec& weight, bool bias = true) {
    add_gelu_case(table, how, x, weight, bias, out);
  };
  add({{3, 4}}, {{2, 4}});
  add({{3, 4}}, {{2, 4}}, false);
  add({{4}}, {{8, 4}});
  add({{2, 3, 4}, heads}, {{5, 4}});
  add({{3, 4}, sliced}, {{2, 4}, transposed});
  add({{3, 4}, expanded}, {{2, 4}, padded});
  add({{2, 8, 16}}, {{24, 16}});
  add({{2, 8, 16}}, {{24, 16}}, false);
  add({{40, 9}}, {{33, 9}});
  add({{0, 3}}, {{2, 3}});
  add({{2, 0}}, {{3, 0}});
}

}  // namespace

void add_linear(OpTable& table) {
  for (const bool bias : {true, false}) {
    add_case(table, {{3, 4}}, {{2, 4}}, bias);
    add_case(table, {{4}}, {{3, 4}}, bias);
    add_case(table, {{2, 3, 4}}, {{5, 4}}, bias);
    add_case(table, {{2, 3, 4}, heads}, {{5, 4}}, bias);
    add_case(table, {{3, 4}, sliced}, {{2, 4}, transposed}, bias);
    add_case(table, {{3, 4}, expanded}, {{2, 4}, padded}, bias);
    add_case(table, {{2, 33, 65}}, {{130, 65}}, bias);
    add_case(table, {{64, 63}}, {{1, 63}}, bias);
    add_case(table, {{0, 3}}, {{2, 3}}, bias);
    add_case(table, {{2, 0}}, {{3, 0}}, bias);
  }
  for (const auto how : {GeluApproximation::none, GeluApproximation::tanh}) {
    for (const int64_t out : {0, 8}) add_gelu_cases(table, how, out);
  }
}

}  // namespace sash::testing
