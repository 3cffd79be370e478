// What dropout drops, on each device, against the words that the seed gives.
#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include <sash/sash.h>

#include "../support/devices.h"
#include "../support/reference.h"

using namespace sash;
using namespace sash::testing;

namespace {

constexpr uint64_t kSeed = 5;

bool kept(int64_t element, double p) {
  return p < 1 && random_word(kSeed, static_cast<uint64_t>(element)) >= p * 4294967296.0;
}

}  // namespace

TEST_CASE_TEMPLATE("dropout: masks have the same bits on every device", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  const auto check = [](const Tensor& x, double p) {
    manual_seed(kSeed);
    const std::vector<double> found = dropout(x, p).to_vector<double>();
    const double scaled = x.dtype() == DType::float32 ? double(1 / (1 - float(p))) : 1 / (1 - p);
    std::vector<double> expected;
    for (int64_t i = 0; i < x.numel(); ++i) expected.push_back(kept(i, p) ? scaled : 0);
    CHECK(found == expected);
  };
  for (const DType dtype : {DType::float32, DType::float64}) {
    for (const double p : {0.1, 0.5, 1.0}) {
      for (const Shape& shape : {Shape{1}, Shape{3, 5}, Shape{1023}, Shape{130, 97}, Shape{0}}) {
        CAPTURE(to_string(shape));
        CAPTURE(p);
        const Tensor x = ones(shape, {.dtype = dtype, .device = On::device});
        check(x, p);
        check(x.transpose(0, -1), p);
      }
    }
  }
}

TEST_CASE_TEMPLATE("dropout: attention drops the same weights on every device", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  const double p = 0.3, rounded = std::round(p * 4096) / 4096;
  for (const DType dtype : {DType::float32, DType::float64}) {
    for (const int64_t keys : {1, 5, 32, 67}) {
      CAPTURE(keys);
      // Uniform weights times the identity: where the result is zero, a weight was dropped.
      const TensorOptions options{.dtype = dtype, .device = On::device};
      const Tensor q = zeros({2, 3, 35, 8}, options), k = zeros({2, 3, keys, 8}, options);
      const Tensor v = eye(keys, options).expand({2, 3, keys, keys});
      manual_seed(kSeed);
      const Tensor y = attention(q, k, v, {.dropout = p});
      std::vector<bool> found, expected;
      for (const double weight : y.to_vector<double>()) {
        const auto at = static_cast<int64_t>(found.size());
        expected.push_back(keeps_weight(kSeed, at / keys, at % keys, rounded));
        found.push_back(weight != 0);
      }
      CHECK(found == expected);
    }
  }
}
