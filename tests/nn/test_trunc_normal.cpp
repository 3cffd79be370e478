#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include <sash/nn/init.h>
#include <sash/ops/elementwise/unary.h>
#include <sash/ops/reduce/reduce.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>

#include "../support/devices.h"

using namespace sash;
using namespace sash::testing;

namespace {

/// A standard normal on [low, high] by Simpson's rule: where nothing is left of exp(-z^2 / 2), from
/// the end of the interval that is nearest to 0.
struct TruncatedNormal {
  std::vector<double> z, below;  // places, and the probability below each
  double mean = 0, variance = 0;

  TruncatedNormal(double low, double high) {
    const double near = std::clamp(0.0, low, high), reach = 12 / std::max(1.0, std::abs(near));
    const double from = std::max(low, near - reach), to = std::min(high, near + reach);
    constexpr int count = 20000;
    const auto density = [&](double at) { return std::exp((near - at) * (near + at) / 2); };
    double total = 0, first = 0, second = 0;
    for (int i = 0; i < count; ++i) {
      const double a = from + (to - from) * i / count, b = from + (to - from) * (i + 1) / count;
      const double middle = (a + b) / 2, width = (b - a) / 6;
      z.push_back(a);
      below.push_back(total);
      for (const auto& [at, weight] : {std::pair(a, 1.0), {middle, 4.0}, {b, 1.0}}) {
        const double mass = width * weight * density(at);
        total += mass;
        first += mass * (at - near);
        second += mass * (at - near) * (at - near);
      }
    }
    z.push_back(to);
    below.push_back(total);
    for (double& p : below) p /= total;
    mean = near + first / total;
    variance = second / total - (first / total) * (first / total);
  }
};

}  // namespace

TEST_CASE_TEMPLATE("trunc_normal_: mean, variance and distribution, far tails too", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  manual_seed(9);
  constexpr double infinity = std::numeric_limits<double>::infinity();
  constexpr int64_t n = 100000;
  const Tensor x = zeros({n}, {.dtype = DType::float64, .device = On::device});
  for (const auto& [low, high] : {std::pair(-2.0, 2.0),
                                  {-0.1, 3.0},
                                  {-30.0, 0.5},
                                  {3.0, 5.0},
                                  {-infinity, -6.0},
                                  {-infinity, infinity},
                                  {8.0, 8.01},
                                  {36.5, 38.5},
                                  {-41.0, -39.0},
                                  {200.0, infinity},
                                  {-infinity, -1e5}}) {
    CAPTURE(low);
    CAPTURE(high);
    const TruncatedNormal expected(low, high);
    nn::init::trunc_normal_(x, 0, 1, low, high);
    std::vector<double> values = x.to_vector<double>();
    std::sort(values.begin(), values.end());
    CHECK(values.front() >= low);
    CHECK(values.back() <= high);
    const double deviation = std::sqrt(expected.variance), root = std::sqrt(double(n));
    double mean = 0, variance = 0;
    for (const double value : values) mean += (value - expected.mean) / n;
    for (const double value : values) variance += std::pow(value - expected.mean, 2) / n;
    CHECK(std::abs(mean) < 5 * deviation / root);
    CHECK(variance == doctest::Approx(expected.variance).epsilon(0.04));
    // Kolmogorov's distance: above 2.2 / sqrt(n) in one of 10,000 runs.
    double distance = 0;
    for (size_t i = 0; i < expected.z.size(); ++i) {
      const auto at = std::lower_bound(values.begin(), values.end(), expected.z[i]);
      const double share = static_cast<double>(at - values.begin()) / n;
      distance = std::max(distance, std::abs(share - expected.below[i]));
    }
    CHECK(distance < 2.2 / root);
  }
}

TEST_CASE_TEMPLATE("trunc_normal_: dtypes, strides and bounds that are one number", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  const auto drawn = [](const Tensor& x, double mean, double std, double low, double high) {
    manual_seed(4);
    return nn::init::trunc_normal_(x, mean, std, low, high);
  };
  const TensorOptions wide{.dtype = DType::float64, .device = On::device};
  const Tensor exact = drawn(zeros({5, 700}, wide), 1, 0.3, 0.9, 4);
  for (const DType dtype : {DType::float32, DType::float16, DType::bfloat16}) {
    const Tensor x = drawn(zeros({5, 700}, {.dtype = dtype, .device = On::device}), 1, 0.3, 0.9, 4);
    CHECK(x.to_vector<double>() == exact.to(DType::float32).to(dtype).to_vector<double>());
  }
  const Tensor frame = zeros({700, 10}, wide), columns = frame.mT().slice(0, 1, 10, 2);
  drawn(columns, 1, 0.3, 0.9, 4);
  CHECK(columns.to_vector<double>() == exact.to_vector<double>());
  CHECK(frame.select(1, 0).abs().sum().item<double>() == 0);
  for (const auto& [mean, low, high] : {std::tuple(0.0, 1e200, 2e200),
                                        {0.0, -2e200, -1e200},
                                        {1.0, 1e20, 2e20},
                                        {0.0, 3.0, 3.0 + 5e-16}}) {
    const Tensor x = drawn(zeros({64}, wide), mean, 1, low, high);
    CHECK(x.min().item<double>() >= low);
    CHECK(x.max().item<double>() <= high);
    CHECK(std::abs(x.mean().item<double>() / (low < 0 ? high : low) - 1) < 1e-12);
  }
}
