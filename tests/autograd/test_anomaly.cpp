// Anomaly mode blames an op for a NaN only if it made it of inputs that had none.
#include <doctest/doctest.h>

#include <limits>

#include <sash/ops/elementwise/binary.h>
#include <sash/ops/elementwise/unary.h>
#include <sash/ops/elementwise/where.h>
#include <sash/tensor/autograd/anomaly.h>
#include <sash/tensor/autograd/grad_mode.h>
#include <sash/tensor/factories.h>

#include "../support/expect_error.h"

using namespace sash;
using namespace sash::testing;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Tensor constant(const std::vector<double>& values) { return tensor(values, {2}); }
Tensor variable(const std::vector<double>& values) { return constant(values).requires_grad_(); }

template <class F>
void expect_blamed(const std::string& op, F call) {
  CHECK_THROWS_WITH_AS(call(), doctest::Contains((op + ": made the first NaN, in the").c_str()),
                       AutogradError);
}

}  // namespace

TEST_CASE("anomaly mode: a NaN of the data, a parameter or an op that was not recorded") {
  const AnomalyGuard guard;
  const Tensor w = variable({1, 2});
  CHECK(has_nan(w * constant({1, kNan})));
  CHECK(has_nan(variable({1, kNan}).view({2, 1})));
  const Tensor unrecorded = [] {
    const NoGradGuard no_grad;
    return log(constant({-1, 1}));
  }();
  const Tensor y = w + unrecorded;
  CHECK(has_nan(y));
  CHECK(has_nan(log(y)));  // nor for one that its input had
  expect_blamed("log", [&] { log(w - 2.0); });
}

TEST_CASE("anomaly mode: in-place ops, whose old elements are inputs too") {
  const AnomalyGuard guard;
  const Tensor w = variable({1, 2}), bad = constant({1, kNan});
  Tensor y = w * 1.0;
  y.add_(bad);
  y.mul_(2);
  y[1].add_(1);
  y[0].mul_(3);  // of a base with a NaN elsewhere
  expect_blamed("mul_", [&] { Tensor(y[0]).mul_(kNan); });
  y.mul_(y);
  CHECK(has_nan(y));
  y.masked_fill_(tensor({true, true}), 0);
  CHECK_FALSE(has_nan(y));
  expect_blamed("fill_", [&] { y.fill_(kNan); });

  Tensor z = w * 0.0;
  expect_blamed("div_", [&] { z.div_(z); });
  Tensor buffer = constant({kNan, 0});  // without history
  buffer.add_(w);
  CHECK(has_nan(buffer));
}
