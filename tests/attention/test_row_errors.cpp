// How attention is compared: what an error of a few rows is to the norm of all, and to `row_error`.
#include <doctest/doctest.h>

#include <limits>
#include <vector>

#include <sash/sash.h>

#include "../support/attention/row_errors.h"

using namespace sash;
using namespace sash::testing;

TEST_CASE("row errors: zeroed last rows of a causal head are seen, though the norm misses them") {
  manual_seed(2);
  const Shape shape{1, 1, 1300, 16};
  const Tensor q = randn(shape, {.requires_grad = true}), k = randn(shape, {.requires_grad = true}),
               v = randn(shape, {.requires_grad = true}), g = randn(shape);
  const Tensor out = attention(q, k, v, {.mask = AttentionMask::causal()});
  const std::vector<Tensor> gradients = grad({out}, {q, k, v}, {g});
  constexpr double limit = 0x1p-7;
  for (const size_t which : {1, 2}) {  // dk and dv, whose last rows few queries see
    CAPTURE(which);
    const Tensor& exact = gradients[which];
    for (const int64_t rows : {1, 5}) {
      CAPTURE(rows);
      Tensor zeroed = exact.clone();
      zeroed.narrow(2, 1300 - rows, rows).fill_(0);
      CHECK(relative_error(zeroed, exact) <= limit);
      CHECK(row_error(zeroed, exact) > kRows * limit);
    }
    CHECK(row_error(exact * (1 + limit), exact) <= kRows * limit);
  }
  for (const Tensor& exact : {out.detach(), gradients[0]}) {
    Tensor zeroed = exact.clone();
    zeroed.narrow(2, 1299, 1).fill_(0);
    CHECK(row_error(zeroed, exact) > kScoreRows * limit);
  }
}

TEST_CASE("row errors: what a row is measured by") {
  const auto rows = [](const std::vector<double>& x) {
    return tensor(x, {static_cast<int64_t>(x.size()) / 2, 2});
  };
  const Tensor exact = rows({3, 4, 0, 0, 0, 10, 0, 20, 0, 0});  // norms 5, 0, 10, 20, 0
  CHECK(row_error(exact, exact) == 0);
  // A large row is measured by its norm, others by the median, 10.
  CHECK(row_error(rows({3, 4, 0, 0, 0, 10, 0, 22, 0, 0}), exact) == doctest::Approx(0.1));
  CHECK(row_error(rows({3, 3, 0, 0, 0, 10, 0, 20, 0, 0}), exact) == doctest::Approx(0.1));
  CHECK(row_error(rows({3, 4, 0, 2, 0, 10, 0, 20, 0, 0}), exact) == doctest::Approx(0.2));
  CHECK(row_error(rows({3, 4, 0, 2, 0, 10, 0, 20, 0, 0}), exact, 2) < 0.1);
  CHECK(row_error(rows({0, 0, 0, 0, 0, 3, 0, 0}), rows({0, 0, 0, 0, 0, 0, 0, 0})) == 3);
  const double inf = std::numeric_limits<double>::infinity(), nan = inf - inf;
  CHECK(row_error(rows({3, 4, 0, 0, 0, nan, 0, 20, 0, 0}), exact) == inf);
  CHECK(row_error(rows({nan, 1}), rows({nan, 1})) == 0);
  CHECK(row_error(rows({inf, 1}), rows({-inf, 1})) == inf);
}
