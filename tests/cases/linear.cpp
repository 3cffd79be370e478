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
  if (bias) inputs.push_back({.shape = {weight.shape[0]}});
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
    add_case(table, {.shape = {3, 4}}, {.shape = {2, 4}}, bias);
    add_case(table, {.shape = {4}}, {.shape = {3, 4}}, bias);
    add_case(table, {.shape = {2, 3, 4}}, {.shape = {5, 4}}, bias);
    add_case(table, {.shape = {2, 3, 4}, .layout = Layout::heads}, {.shape = {5, 4}}, bias);
    add_case(table, {.shape = {3, 4}, .layout = Layout::sliced},
             {.shape = {2, 4}, .layout = Layout::transposed}, bias);
    add_case(table, {.shape = {3, 4}, .layout = Layout::expanded},
             {.shape = {2, 4}, .layout = Layout::padded}, bias);
    add_case(table, {.shape = {2, 33, 65}}, {.shape = {130, 65}}, bias);
    add_case(table, {.shape = {64, 63}}, {.shape = {1, 63}}, bias);
    add_case(table, {.shape = {0, 3}}, {.shape = {2, 3}}, bias);
    add_case(table, {.shape = {2, 0}}, {.shape = {3, 0}}, bias);
  }
}

}  // namespace sash::testing
