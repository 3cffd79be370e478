// Products and attention on a card, beyond the table: half types and TF32.
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include <sash/core/backend.h>
#include <sash/sash.h>

#include "../support/cuda_device.h"

using namespace sash;

namespace {

const Device kCard{DeviceType::cuda, 0};
const std::vector<DType> kHalves = {DType::float16, DType::bfloat16};

/// ||a - b|| / ||b||.
double distance(const Tensor& a, const Tensor& b) {
  const std::vector<double> x = a.to_vector<double>(), y = b.to_vector<double>();
  REQUIRE(x.size() == y.size());
  double error = 0, scale = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    error += (x[i] - y[i]) * (x[i] - y[i]);
    scale += y[i] * y[i];
  }
  return scale == 0 ? std::sqrt(error) : std::sqrt(error / scale);
}

/// Random numbers that `dtype` holds exactly, as float32 on the card.
Tensor numbers(const Shape& shape, DType dtype) {
  return randn(shape, {.dtype = DType::float32, .device = kCard}).to(dtype).to(DType::float32);
}

/// Half of a step of the halves, relative.
double rounding(DType dtype) { return dtype == DType::float16 ? 0x1p-11 : 0x1p-8; }

struct Tf32Guard {
  Tf32Guard() { set_tf32_allowed(true); }
  ~Tf32Guard() { set_tf32_allowed(false); }
};

}  // namespace

TEST_CASE("cuda products: halves are multiplied in float32 and rounded once") {
  if (cuda_missing()) return;
  for (const DType dtype : kHalves) {
    for (const int64_t n : {1, 7, 64, 130}) {
      CAPTURE(name(dtype));
      CAPTURE(n);
      const Tensor x = numbers({33, 65}, dtype), w = numbers({n, 65}, dtype),
                   bias = numbers({n}, dtype);
      const auto half = [dtype](const Tensor& t) { return t.to(dtype); };
      CHECK(distance(linear(half(x), half(w), half(bias)), linear(x, w, bias)) < rounding(dtype));
      CHECK(distance(linear(half(x), half(w)), linear(x, w)) < rounding(dtype));
      CHECK(distance(matmul(half(x), half(w).mT()), matmul(x, w.mT())) < rounding(dtype));
    }
  }
}

TEST_CASE("cuda products: float32 is rounded to TF32 only where it is allowed") {
  if (cuda_missing()) return;
  const Tensor x = randn({256, 256}, {.dtype = DType::float32, .device = kCard});
  const Tensor exact = matmul(x.to(DType::float64), x.to(DType::float64));
  CHECK_FALSE(tf32_allowed());
  CHECK(distance(matmul(x, x), exact) < 1e-6);
  {
    const Tf32Guard guard;
    const double rounded = distance(matmul(x, x), exact);
    CHECK(rounded > 1e-5);
    CHECK(rounded < 1e-3);
  }
  CHECK(distance(matmul(x, x), exact) < 1e-6);
}

TEST_CASE("cuda attention: halves are computed in float32 and rounded once") {
  if (cuda_missing()) return;
  for (const DType dtype : kHalves) {
    for (const int64_t depth : {5, 64, 72, 128}) {
      CAPTURE(name(dtype));
      CAPTURE(depth);
      const Shape queries{2, 4, 130, depth}, keys{2, 2, 131, depth};
      const Tensor inputs[] = {numbers(queries, dtype), numbers(keys, dtype), numbers(keys, dtype)};
      const Tensor cotangent = numbers(queries, dtype);
      Tensor result[2], gradient[2][3];
      for (const bool half : {false, true}) {
        const DType type = half ? dtype : DType::float32;
        Tensor x[3];
        for (int i = 0; i < 3; ++i) {
          x[i] = inputs[i].detach().to(type);
          x[i].requires_grad_(true);
        }
        manual_seed(5);
        result[half] =
            attention(x[0], x[1], x[2], {.mask = AttentionMask::causal(), .dropout = 0.1});
        result[half].backward(cotangent.to(type));
        for (int i = 0; i < 3; ++i) gradient[half][i] = x[i].grad();
      }
      CHECK(distance(result[1].detach(), result[0].detach()) < rounding(dtype));
      // The rounded output enters the row sums.
      for (int i = 0; i < 3; ++i) {
        CHECK(distance(gradient[1][i], gradient[0][i]) < 4 * rounding(dtype));
      }
    }
  }
}
