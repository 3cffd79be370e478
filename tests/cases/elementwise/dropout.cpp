#include <sash/ops/elementwise/dropout_state.h>

#include <sash/tensor/random.h>

#include "../cases.h"

namespace sash::testing {
namespace {

constexpr uint64_t kSeed = 20240607;

Array dropout_of(const Array& x, double p) {
  Array y = x;
  for (size_t i = 0; i < y.values.size(); ++i) {
    const bool kept = random_word(kSeed, i) >= p * 4294967296.0;
    y.values[i] = kept && p < 1 ? y.values[i] / (1 - p) : 0;
  }
  return y;
}

void add_case(OpTable& table, const InputSpec& input, double p) {
  const std::string variant = std::to_string(p).substr(0, 4) + " of " + describe(input);
  const auto reference = [p](const Arrays& x) { return dropout_of(x[0], p); };
  table.push_back({
      .op = "dropout",
      .variant = variant,
      .inputs = {input},
      .run =
          [p](const Tensors& x) {
            manual_seed(kSeed);
            return dropout(x[0], p);
          },
      .reference = reference,
  });
  table.push_back({
      .op = "seeded_dropout",
      .variant = variant,
      .inputs = {input},
      .run =
          [p](const Tensors& x) {
            Generator state(kSeed);
            return seeded_dropout(x[0], p, state);
          },
      .reference = reference,
  });
  table.push_back({
      .op = "dropout_with_mask",
      .variant = variant,
      .inputs = {input},
      .run = [p](const Tensors& x) -> Tensors {
        Generator state(kSeed);
        const DropoutResult result = dropout_with_mask(x[0], p, state);
        return {result.out, apply_dropout_mask(x[0], result.mask, p)};
      },
      .reference = [p](const Arrays& x) -> Arrays { return Arrays(2, dropout_of(x[0], p)); },
      .half_gradient_rounds = 3,
      .half_gradient_scale = 4,
  });
  if (p == 0 || p == 1) return;
  using Function = Tensor (*)(const Tensor&, double, PhiloxState);
  for (const auto& [kind, f] : {std::pair<const char*, Function>{"", dropout_with},
                                {"composite, ", composite::dropout_with}}) {
    table.push_back({
        .op = "dropout_with",
        .variant = kind + variant,
        .inputs = {input},
        .run =
            [p, function = f](const Tensors& x) {
              manual_seed(kSeed);
              return function(x[0], p, next_philox(x[0].device(), x[0].numel()));
            },
        .reference = reference,
    });
  }
}

}  // namespace

void add_dropout(OpTable& table) {
  for (const double p : {0.0, 0.25, 0.9, 1.0}) add_case(table, {.shape = {5, 7}}, p);
  add_case(table, {.shape = {}}, 0.5);
  add_case(table, {.shape = {0, 2}}, 0.5);
  add_case(table, {.shape = {65, 130}}, 0.5);
  add_case(table, {.shape = {5, 3}, .layout = Layout::transposed}, 0.5);
  add_case(table, {.shape = {2, 3, 3}, .layout = Layout::heads}, 0.5);
  add_case(table, {.shape = {3, 5}, .layout = Layout::sliced}, 0.5);
  add_case(table, {.shape = {3, 5}, .layout = Layout::expanded}, 0.5);
  table.push_back({
      .op = "apply_dropout_mask",
      .variant = "of a given mask",
      .inputs = {{.shape = {2, 2}},
                 {.shape = {2, 2}, .dtype = DType::boolean, .elements = {1, 0, 0, 1}}},
      .run = [](const Tensors& x) { return apply_dropout_mask(x[0], x[1], 0.75); },
      .reference =
          [](const Arrays& x) {
            return zip(x[0], x[1], [](double a, double m) { return 4 * m * a; });
          },
  });
  table.push_back({
      .op = "dropout",
      .variant = "not training",
      .inputs = {{.shape = {3, 4}}},
      .run = [](const Tensors& x) { return dropout(x[0], 0.5, false); },
      .reference = [](const Arrays& x) { return x[0]; },
  });
}

}  // namespace sash::testing
