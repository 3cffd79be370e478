#include <sash/ops/linalg/linear.h>

#include "cases.h"

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
}

}  // namespace sash::testing
