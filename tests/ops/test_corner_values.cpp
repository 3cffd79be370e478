#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include <sash/ops/elementwise/binary.h>
#include <sash/ops/elementwise/unary.h>
#include <sash/ops/norm/softmax.h>
#include <sash/ops/reduce/reduce.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>

#include "../support/expect_error.h"

using namespace sash;
using namespace sash::testing;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();

Tensor doubles(const std::vector<double>& values) {
  return tensor(values, {static_cast<int64_t>(values.size())}, {.dtype = DType::float64});
}

Tensor variable(const std::vector<double>& values) {
  return doubles(values).detach().requires_grad_();
}

}  // namespace

TEST_CASE("arange counts exactly, to the ends of int64") {
  constexpr int64_t big = int64_t{1} << 53;
  CHECK(arange(big, big + 3).to_vector<int64_t>() == std::vector<int64_t>{big, big + 1, big + 2});
  CHECK(arange(kMost - 2, kMost).numel() == 2);
  CHECK(arange(kLeast, kMost, int64_t{1} << 62).to_vector<int64_t>() ==
        std::vector<int64_t>{kLeast, -(int64_t{1} << 62), 0, int64_t{1} << 62});
  CHECK(arange(kMost, kLeast, kLeast).to_vector<int64_t>() == std::vector<int64_t>{kMost, -1});
  CHECK(arange(5, 0, -2).to_vector<int64_t>() == std::vector<int64_t>{5, 3, 1});
  CHECK(arange(3, 3).numel() == 0);
  CHECK(arange(0, 3, -1).numel() == 0);
  expect_error<ValueError>("arange: expected at most 9223372036854775807 elements, got 1e+30",
                           [] { arange(0, 1e30); });
  expect_error<ValueError>(
      "arange: expected at most 9223372036854775807 elements, got 18446744073709551615",
      [] { arange(kLeast, kMost); });
  expect_error<ValueError>("arange: expected a value of int32, got 4294967296", [] {
    arange(0, int64_t{1} << 33, int64_t{1} << 32, {.dtype = DType::int32});
  });
}

TEST_CASE("randint draws from ranges beyond 2^32") {
  manual_seed(3);
  const std::vector<int64_t> all = randint(kLeast, kMost, {4000}).to_vector<int64_t>();
  // Each of 64 bits is set in about half of the numbers.
  for (int bit = 0; bit < 64; ++bit) {
    int set = 0;
    for (const int64_t x : all) set += static_cast<int>(static_cast<uint64_t>(x) >> bit & 1);
    CAPTURE(bit);
    CHECK(std::abs(set - 2000) < 200);
  }
  constexpr int64_t high = int64_t{3} << 33;
  double mean = 0;
  for (const int64_t x : randint(0, high, {4000}).to_vector<int64_t>()) {
    CHECK(x >= 0);
    CHECK(x < high);
    mean += static_cast<double>(x) / 4000;
  }
  CHECK(std::abs(mean / static_cast<double>(high) - 0.5) < 0.03);
  // A wide range takes two blocks of the generator per four elements, a narrow one takes one.
  manual_seed(7);
  const auto first = randint(0, high, {5}).to_vector<int64_t>();
  CHECK(random_state().offset == 4);
  const auto bounds = randint(-2147483648, 2147483648, {2}, {.dtype = DType::int32});
  CHECK(bounds.dtype() == DType::int32);
  CHECK(random_state().offset == 5);
}

TEST_CASE("the gradient of cumsum is a sum from the end") {
  const int64_t n = 100000;
  manual_seed(1);
  const Tensor g = randn({n}).detach();
  Tensor x = zeros({n}, {.requires_grad = true});
  cumsum(x, 0).backward(g);
  const std::vector<double> cotangent = g.to_vector<double>(), found = x.grad().to_vector<double>();
  double total = 0, worst = 0;
  for (size_t i = static_cast<size_t>(n); i-- > 0;) {
    total += cotangent[i];
    worst = std::max(worst, std::abs(found[i] - total) / std::max(1.0, std::abs(total)));
  }
  CHECK(worst < 1e-6);

  Tensor y = variable({0, 0, 0, 0});
  cumsum(y, 0).backward(doubles({1, kInfinity, 2, 3}));
  CHECK(y.grad().to_vector<double>() == std::vector<double>{kInfinity, kInfinity, 5, 3});
  Tensor columns = zeros({3, 2}, {.dtype = DType::float64, .requires_grad = true});
  cumsum(columns.mT(), 1).backward(doubles({1, 2, 3, 4, 5, 6}).view({2, 3}));
  CHECK(columns.grad().to_vector<double>() == std::vector<double>{6, 15, 5, 11, 3, 6});
}

TEST_CASE("variances of too few elements are infinite or NaN") {
  const Tensor x = doubles({1, 2, 4});
  CHECK(var(x, {0}, 3).item<double>() == kInfinity);
  CHECK(var(x, {0}, 7).item<double>() == kInfinity);
  CHECK(std::isnan(var(doubles({2, 2}), {0}, 5).item<double>()));
  CHECK(std::isnan(var(doubles({2}), {0}).item<double>()));
  CHECK(var(x, {0}, 2).item<double>() == doctest::Approx(14.0 / 3));
}

TEST_CASE("the gradient of a power to an exponent, where the base is 0") {
  const Tensor base = doubles({0, 0, 0, 2});
  Tensor exponent = variable({-1, 0, 2, -1});
  pow(base, exponent).sum().backward();
  const std::vector<double> g = exponent.grad().to_vector<double>();
  CHECK(g[0] == -kInfinity);
  CHECK(g[1] == 0);
  CHECK(g[2] == 0);
  CHECK(g[3] == doctest::Approx(std::log(2) / 2));
}

TEST_CASE("clamp with a bound of NaN is NaN, and flat") {
  Tensor x = variable({-1, 0.5, 3});
  for (const Tensor& y : {clamp(x, NAN, 1), clamp(x, -1, NAN), clamp(x, NAN)}) {
    for (const double value : y.to_vector<double>()) CHECK(std::isnan(value));
  }
  clamp(x, NAN, 1).sum().backward();
  CHECK(x.grad().to_vector<double>() == std::vector<double>{0, 0, 0});
}

TEST_CASE("differences with the least integer") {
  const Tensor zero = zeros({1}, {.dtype = DType::float64});
  CHECK((zero - kLeast).item<double>() == 0x1p63);
  CHECK((tensor<int64_t>({-1}) - kLeast).item<int64_t>() == kMost);
}

TEST_CASE("softmax over any axis is row-major") {
  const Tensor x = randn({3, 4});
  for (const int64_t axis : {0, 1, -2}) {
    CHECK(softmax(x, axis).is_contiguous());
    CHECK(softmax(x, axis).view({12}).numel() == 12);
    CHECK(log_softmax(x, axis).view({12}).numel() == 12);
  }
}
