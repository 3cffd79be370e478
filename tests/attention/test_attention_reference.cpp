#include <doctest/doctest.h>

#include <cmath>

#include "../support/attention/attention_reference.h"
#include "../support/random_numbers.h"

using namespace sash::testing;

TEST_CASE("plain attention: a key's gradients from saved results are those of the whole call") {
  RandomNumbers random(1);
  const auto numbers = [&](const sash::Shape& shape) {
    return generate(shape, [&](const Index&) { return 2 * random.uniform() - 1; });
  };
  AttentionProblem p;
  p.q = numbers({1, 2, 5, 3});
  p.k = numbers({1, 1, 7, 3});
  p.v = numbers({1, 1, 7, 4});
  p.g = numbers({1, 2, 5, 4});
  p.g_lse = numbers({1, 2, 5});
  p.softcap = 1.5;
  const AttentionAnswer whole = solve(p);
  for (int64_t j = 0; j < 7; ++j) {
    const auto row = [j](const Array& x) {
      return generate({1, 1, 1, x.shape[3]}, [&](const Index& at) { return x[{0, 0, j, at[3]}]; });
    };
    AttentionProblem one = p;
    one.k = row(p.k);
    one.v = row(p.v);
    one.saved_out = whole.out;
    one.saved_lse = whole.lse;
    const AttentionAnswer found = solve(one);
    for (int64_t d = 0; d < 3; ++d) {
      CHECK(std::abs(found.dk[{0, 0, 0, d}] - whole.dk[{0, 0, j, d}]) < 1e-14);
    }
    for (int64_t d = 0; d < 4; ++d) {
      CHECK(std::abs(found.dv[{0, 0, 0, d}] - whole.dv[{0, 0, j, d}]) < 1e-14);
    }
  }
}
