#include <sash/ops/loss/mse_loss.h>

#include "../cases.h"

namespace sash::testing {
namespace {

Array mse_loss_of(const Arrays& t, Reduction reduction) {
  const Array squares = zip(t[0], t[1], [](double a, double b) { return (a - b) * (a - b); });
  if (reduction == Reduction::none) return squares;
  double total = 0;
  for (const double value : squares.values) total += value;
  return Array(
      {}, reduction == Reduction::sum ? total : total / static_cast<double>(squares.values.size()));
}

using Function = Tensor (*)(const Tensor&, const Tensor&, Reduction);

void add_cases(OpTable& table, const std::string& kind, Function f) {
  const auto add = [&](const InputSpec& a, const InputSpec& b, Reduction reduction) {
    constexpr const char* names[] = {"none, ", "mean, ", "sum, "};
    table.push_back({
        .op = "mse_loss",
        .variant = kind + names[static_cast<int>(reduction)] + describe(a) + " and " + describe(b),
        .inputs = {a, b},
        .run = [=](const Tensors& t) { return f(t[0], t[1], reduction); },
        .reference = [=](const Arrays& t) { return mse_loss_of(t, reduction); },
        .tolerance32 = 3e-5,
        .half_rounds = kind.empty() && reduction != Reduction::none ? 1.0 : 3,  // of plain ops
        .half_gradient_rounds = kind.empty() && reduction != Reduction::none ? 1.0 : 3,
        .differentiable = count(a.shape) > 0,  // the mean of nothing is NaN
    });
  };
  for (const Reduction reduction : {Reduction::none, Reduction::mean, Reduction::sum}) {
    add({{3, 5}}, {{3, 5}}, reduction);
    add({{4, 3}, transposed}, {{4, 3}, sliced}, reduction);
    add({{3, 4}, padded}, {{3, 4}, expanded}, reduction);
    add({{65, 64}}, {{65, 64}}, reduction);
    add({{}}, {{}}, reduction);
    add({{0, 2}}, {{0, 2}}, reduction);
  }
}

}  // namespace

void add_mse_loss(OpTable& table) {
  add_cases(table, "", mse_loss);
  add_cases(table, "composite, ", composite::mse_loss);
}

}  // namespace sash::testing
