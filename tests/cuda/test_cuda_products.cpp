// Products whose algorithm a table names: right with any cuBLAS, of which the numbers in the table
// may mean something else. Against float32, on the card.
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include <sash/sash.h>

#include "../support/devices.h"
#include "../support/scopes.h"

using namespace sash;
using namespace sash::testing;

namespace {

struct Sizes {
  int64_t m, n, k;
  bool a, b;  ///< transposed in memory
  bool bias = false;
};

double error_of(const Tensor& found, const Tensor& exact) {
  const Tensor wide = found.to(DType::float32);
  const double apart = (wide - exact).square().sum().item<double>();
  return std::sqrt(apart / exact.square().sum().item<double>());
}

void check(const Sizes& s, DType dtype, double limit) {
  CAPTURE(s.m);
  CAPTURE(s.n);
  CAPTURE(s.k);
  manual_seed(4);
  const auto made = [&](const Shape& shape) {
    return randn(shape, {.dtype = dtype, .device = kCUDA});
  };
  const auto operand = [&](int64_t rows, int64_t columns, bool transposed) {
    return transposed ? made({columns, rows}).transpose(0, 1) : made({rows, columns});
  };
  const Tensor a = operand(s.m, s.k, s.a), b = operand(s.k, s.n, s.b), bias = made({s.n});
  const auto product = [&](DType in) {
    const Tensor x = a.to(in), y = b.to(in);
    return s.bias ? linear(x, y.transpose(0, 1), bias.to(in)) : matmul(x, y);
  };
  const Tensor found = [&] {
    const AllowTf32 allow(dtype == DType::float32);
    return product(dtype);
  }();
  CHECK(error_of(found, product(DType::float32)) < limit);
}

}  // namespace

TEST_CASE("cuda products: those of the table of algorithms are right") {
  if (missing(kCUDA)) return;
  for (const Sizes& s : std::vector<Sizes>{{16384, 2304, 768, false, true, true},
                                           {16384, 768, 768, false, true, true},
                                           {16384, 768, 3072, false, true, true},
                                           {16384, 768, 2304, false, false},
                                           {768, 768, 16384, true, false},
                                           {3072, 768, 16384, true, false},
                                           {16384, 2304, 768, false, true},
                                           {8192, 1152, 1024, false, true},
                                           {8192, 6912, 1152, false, false},
                                           {16384, 384, 1536, false, true, true},
                                           {1152, 384, 16384, true, false},
                                           {1536, 384, 16384, true, false},
                                           {384, 1536, 16384, true, false},
                                           {512, 512, 65536, true, false},
                                           {512, 2048, 65536, true, false}}) {
    check(s, DType::bfloat16, 0x1p-8);
  }
  for (const Sizes& s : std::vector<Sizes>{{4096, 128, 128, false, true, true},
                                           {16384, 384, 384, false, false},
                                           {16384, 384, 1536, false, false},
                                           {1536, 384, 16384, true, false}}) {
    check(s, DType::float32, 1e-3);
  }
}
