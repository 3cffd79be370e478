#include <sash/ops/random/sampling.h>

#include "cases.h"

// Where chance has no say: tests/ops/test_sampling.cpp has the frequencies.
namespace sash::testing {

void add_sampling(OpTable& table) {
  for (const Layout layout : {contiguous, transposed, sliced}) {
    const InputSpec sure{.shape = {2, 3}, .layout = layout, .elements = {0, 1, 1, 0, 0, 1}};
    table.push_back({
        .op = "bernoulli",
        .variant = "certain, " + describe(sure),
        .inputs = {sure},
        .run = [](const Tensors& x) { return bernoulli(x[0]); },
        .reference = [](const Arrays& x) { return x[0]; },
        .differentiable = false,
    });
    for (const bool replacement : {false, true}) {
      const InputSpec one{
          .shape = {3, 4}, .layout = layout, .elements = {0, 0.5, 0, 0, 3, 0, 0, 0, 0, 0, 0, 1e-3}};
      table.push_back({
          .op = "multinomial",
          .variant =
              std::string(replacement ? "with" : "without") + " replacement, " + describe(one),
          .inputs = {one},
          .run = [=](const Tensors& x) { return multinomial(x[0], 1, replacement); },
          .reference =
              [](const Arrays&) {
                Array y(Shape{3, 1});
                y.values = {1, 0, 3};
                return y;
              },
          .results = {DType::int64},
          .differentiable = false,
      });
    }
  }
}

}  // namespace sash::testing
