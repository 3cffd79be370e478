// Frequencies of draws, and that seeds repeat them.
#include <doctest/doctest.h>

#include <cmath>
#include <set>
#include <vector>

#include <sash/sash.h>

#include "../support/compare.h"
#include "../support/devices.h"

using namespace sash;
using namespace sash::testing;

namespace {

/// How often each of `classes` numbers occurs.
std::vector<double> shares(const Tensor& indices, size_t classes) {
  std::vector<double> count(classes);
  const std::vector<int64_t> all = indices.to_vector<int64_t>();
  for (const int64_t index : all) count.at(static_cast<size_t>(index)) += 1;
  for (double& share : count) share /= static_cast<double>(all.size());
  return count;
}

void check_shares(const std::vector<double>& found, const std::vector<double>& wanted) {
  // Five standard deviations of 20000 draws.
  for (size_t i = 0; i < wanted.size(); ++i) CHECK(std::abs(found[i] - wanted[i]) < 0.018);
}

}  // namespace

TEST_CASE_TEMPLATE("sampling: bernoulli draws with the probabilities given", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  manual_seed(4);
  for (const DType dtype : {DType::float16, DType::bfloat16, DType::float32, DType::float64}) {
    for (const double p : {0.0, 0.25, 0.9, 1.0}) {
      const Tensor y = bernoulli(full({20000}, p, {.dtype = dtype, .device = On::device}));
      CHECK(y.dtype() == dtype);
      const double share = y.to(DType::float64).mean().item<double>();
      CHECK(std::abs(share - p) < (p == 0 || p == 1 ? 1e-9 : 0.018));
    }
  }
}

TEST_CASE_TEMPLATE("sampling: multinomial draws in proportion to the weights", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  manual_seed(5);
  const std::vector<double> p{0.1, 0, 0.2, 0.3, 0.4};
  for (const DType dtype : {DType::bfloat16, DType::float32, DType::float64}) {
    const Tensor weights =
        (tensor(p, {5}) * 8).to(dtype).to(On::device).unsqueeze(0).expand({20000, 5});
    check_shares(shares(multinomial(weights, 1), 5), p);
    check_shares(shares(multinomial(weights, 1, true), 5), p);
    check_shares(shares(multinomial(weights[0], 20000, true), 5), p);
  }
}

TEST_CASE_TEMPLATE("sampling: without replacement, the second draw is from what is left", On, Cpu,
                   Cuda) {
  if (missing(On::device)) return;
  manual_seed(6);
  const Tensor weights =
      tensor({0.5, 0.3, 0.2}).to(DType::float64).to(On::device).unsqueeze(0).expand({20000, 3});
  const Tensor drawn = multinomial(weights, 3);
  check_shares(shares(drawn.select(1, 0), 3), {0.5, 0.3, 0.2});
  // 1 comes second after 0 or 2: 0.5 0.3 / 0.5 + 0.2 0.3 / 0.8, and so on.
  check_shares(shares(drawn.select(1, 1), 3), {0.3393, 0.375, 0.2857});
  CHECK(all(eq(sum(drawn, {1}), 3)).item<bool>());
  CHECK(all(eq(amax(drawn, {1}), 2)).item<bool>());
}

TEST_CASE_TEMPLATE("sampling: a seed gives the same draws, on every device", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  const auto draw = [](Device device) {
    manual_seed(7);
    const Tensor p = tensor({0.1, 0.5, 0.7, 0.2, 0.9, 0.4, 0.3}).to(DType::float32).to(device);
    std::vector<double> all = bernoulli(p).to_vector<double>();
    for (const bool replacement : {false, true}) {
      for (const double index : multinomial(p, 5, replacement).template to_vector<double>()) {
        all.push_back(index);
      }
    }
    return all;
  };
  CHECK(draw(On::device) == draw(kCPU));
  CHECK(multinomial(ones({3}, {.device = On::device}), 0).shape() == Shape{0});
  CHECK(multinomial(ones({0, 3}, {.device = On::device}), 2).shape() == Shape{0, 2});
  CHECK(multinomial(ones({0, 3}, {.device = On::device}), 2, true).shape() == Shape{0, 2});
}

TEST_CASE("sampling: indices of long rows are those of the cumulated weights") {
  manual_seed(8);
  // All weight on one class, wherever it is.
  for (const int64_t classes : {1, 2, 3, 64, 65, 1000}) {
    for (const int64_t place : {int64_t{0}, classes / 2, classes - 1}) {
      const Tensor weights = zeros({classes});
      weights.narrow(0, place, 1).fill_(0.5);
      const std::vector<int64_t> drawn = multinomial(weights, 20, true).to_vector<int64_t>();
      CHECK(std::set<int64_t>(drawn.begin(), drawn.end()) == std::set<int64_t>{place});
    }
  }
}
