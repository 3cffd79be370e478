// Dropout with a generator of the caller's own, which can be saved and restored.
#include <doctest/doctest.h>

#include <sash/sash.h>

#include "../support/compare.h"
#include "../support/devices.h"
#include "../support/expect_error.h"

using namespace sash;
using namespace sash::testing;

TEST_CASE_TEMPLATE("dropout state: a copy brings the same masks again", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  const Tensor x = randn({37, 5}, {.dtype = DType::float32, .device = On::device});
  manual_seed(1);
  const RandomState global = random_state(On::device);
  Generator generator(7);
  const Tensor first = seeded_dropout(x, 0.4, generator);
  const RandomState saved = generator.state();
  const DropoutResult second = dropout_with_mask(x, 0.4, generator);
  CHECK(random_state(On::device) == global);
  CHECK(generator.state() != saved);
  CHECK(!all_same(first, second.out));
  generator.set_state(saved);
  CHECK(all_same(seeded_dropout(x, 0.4, generator), second.out));
  manual_seed(7);
  CHECK(all_same(dropout(x, 0.4), first));
  CHECK(second.mask.dtype() == DType::boolean);
  CHECK(largest_difference(apply_dropout_mask(x, second.mask, 0.4), second.out) < 1e-6);
}

TEST_CASE_TEMPLATE("dropout state: the gradient is that of the mask", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  const TensorOptions options{.dtype = DType::float64, .device = On::device};
  const Tensor x = randn({40}, options).requires_grad_(), g = randn({40}, options);
  Generator generator(9);
  const DropoutResult y = dropout_with_mask(x, 0.3, generator);
  const Tensor expected = g * y.mask.to(DType::float64) / 0.7;
  CHECK(largest_difference(grad({y.out}, {x}, {g})[0], expected) < 1e-12);
  CHECK(largest_difference(grad({apply_dropout_mask(x, y.mask, 0.3)}, {x}, {g})[0], expected) <
        1e-12);
}

TEST_CASE("dropout state: errors") {
  const Tensor x = ones({2}, {.device = kCPU});
  Generator generator(1);
  expect_errors({
      {"ValueError: seeded_dropout: expected a probability in [0, 1], got 2",
       [&] { seeded_dropout(x, 2, generator); }},
      {"DTypeError: apply_dropout_mask: expected bool, got float32",
       [&] { apply_dropout_mask(x, x, 0.5); }},
  });
  CHECK(generator.state() == RandomState{.seed = 1});
}
