// Generators of one's own.
#include <doctest/doctest.h>

#include <sash/sash.h>

#include "../support/compare.h"
#include "../support/devices.h"

using namespace sash;
using namespace sash::testing;

TEST_CASE_TEMPLATE("generator: its numbers are those of manual_seed, whatever others draw", On, Cpu,
                   Cuda) {
  if (missing(On::device)) return;
  const TensorOptions on{.device = On::device};
  const auto draw = [&](auto&... own) {
    const Tensor p = tensor({0.1, 0.5, 0.7, 0.2, 0.9, 0.4, 0.3}).to(On::device);
    return std::vector<Tensor>{rand({5, 3}, own..., on),
                               randn(7, own..., on),
                               randint(0, 99, 4, own..., on),
                               randperm(9, own..., on),
                               bernoulli(p.expand({9, 7}), own...),
                               multinomial(p, 1, false, own...),
                               multinomial(p, 5, false, own...),
                               multinomial(p, 9, true, own...)};
  };
  manual_seed(11);
  const auto expected = draw();
  manual_seed(3);
  Generator first(11), second(12);
  const RandomState before = random_state();
  static_cast<void>(rand(100, second, on));
  const auto found = draw(first);
  for (size_t i = 0; i < found.size(); ++i) CHECK(all_same(found[i], expected[i]));
  CHECK(random_state() == before);
  CHECK(first.seed() == 11);
}

TEST_CASE("generator: a saved state brings the same numbers again") {
  Generator generator(5);
  static_cast<void>(randn(9, generator));
  const RandomState saved = generator.state();
  const Tensor x = randn(9, generator);
  CHECK(!all_same(x, randn(9, generator)));
  generator.set_state(saved);
  CHECK(all_same(x, randn(9, generator)));
  Generator other(saved);
  CHECK(all_same(x, randn(9, other)));
}

TEST_CASE_TEMPLATE("generator: randperm is a permutation, the same on every device", On, Cpu,
                   Cuda) {
  if (missing(On::device)) return;
  const TensorOptions on{.device = On::device};
  for (const int64_t n : {0, 1, 7, 5000}) {
    Generator generator(3), same(3);
    const Tensor order = randperm(n, generator, on);
    CHECK(order.dtype() == DType::int64);
    CHECK(all_same(order.to(kCPU), randperm(n, same, {.device = kCPU})));
    const Tensor seen = zeros(n, {.dtype = DType::int64, .device = On::device});
    CHECK(all_equal(index_add(seen, 0, order, ones_like(order)), 1));
    if (n > 100) CHECK(!all_same(order, arange(n, on)));
  }
  manual_seed(3);
  Generator generator(3);
  CHECK(all_same(randperm(50, on), randperm(50, generator, on)));
}
