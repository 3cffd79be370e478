// Batched products with factors and transposes: what the table of op cases does not show.
#include <doctest/doctest.h>

#include <cmath>

#include <sash/sash.h>

#include "../support/compare.h"
#include "../support/devices.h"
#include "../support/expect_error.h"

using namespace sash;
using namespace sash::testing;

TEST_CASE_TEMPLATE("baddbmm: beta 0 reads no addend, beta counts otherwise", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  const TensorOptions options{.dtype = DType::float32, .device = On::device};
  const Tensor a = randn({2, 3, 4}, options), b = randn({2, 4, 5}, options);
  const Tensor nan = full({2, 3, 5}, std::nan(""), options);
  const Tensor product = matmul(a, b);
  CHECK(largest_difference(baddbmm(nan, a, b, {.beta = 0}), product) == 0);
  CHECK(largest_difference(baddbmm_(nan, a, b, {.beta = 0}), product) == 0);
  const Tensor c = ones({2, 3, 5}, options);
  CHECK(largest_difference(baddbmm(c, a, b, {.alpha = 0, .beta = -3}), c * -3) == 0);
  CHECK(largest_difference(baddbmm_(c, a, b, {.alpha = 2, .beta = 0.5}), product * 2 + 0.5) < 1e-5);
}

TEST_CASE_TEMPLATE("baddbmm: into a view with gaps", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  const TensorOptions options{.dtype = DType::float64, .device = On::device};
  const Tensor a = randn({2, 3, 4}, options), b = randn({2, 4, 5}, options);
  const Tensor wide = full({2, 6, 15}, 7, options);
  const Tensor product = matmul(a, b);
  baddbmm_(wide.slice(2, 0, 15, 3).slice(1, 0, 6, 2), a, b, {.beta = 1});
  CHECK(largest_difference(wide.slice(2, 0, 15, 3).slice(1, 0, 6, 2), product + 7) < 1e-12);
  CHECK(all_equal(wide.slice(2, 1, 15, 3), 7));
  const Tensor turned = zeros({2, 5, 3}, options).mT();
  baddbmm_(turned, a, b);
  CHECK(largest_difference(turned, product) < 1e-12);
}

TEST_CASE("baddbmm: errors") {
  const TensorOptions options{.device = kCPU};
  const Tensor a = zeros({2, 3, 4}, options), b = zeros({2, 4, 5}, options);
  const Tensor c = zeros({2, 3, 5}, options), square = zeros({3, 3}, options);
  const Tensor leaf = zeros({2, 3, 5}, {.device = kCPU, .requires_grad = true});
  expect_errors({
      {"ShapeError: baddbmm: expected op_a(a) [..., M, K] and op_b(b) [..., K, N] with one K, got "
       "[2, 3, 4] transposed and [2, 4, 5]",
       [&] { baddbmm(c, a, b, {.transpose_a = true}); }},
      {"ShapeError: baddbmm: expected c that broadcasts to [2, 5, 3], got [4, 2, 5, 3]",
       [&] {
         baddbmm(zeros({4, 2, 5, 3}, options), a, b, {.transpose_product = true});
       }},
      {"ShapeError: baddbmm_: expected shape [2, 5, 3], got [2, 3, 5]",
       [&] { baddbmm_(c, a, b, {.transpose_product = true}); }},
      {"ValueError: baddbmm_: expected a c that shares no memory with a and b, got one that does",
       [&] { baddbmm_(square, square, square); }},
      {"ValueError: baddbmm: expected a tensor, got an undefined tensor",
       [&] { baddbmm({}, a, b); }},
  });
  CHECK(thrown_by([&] { baddbmm_(leaf, a, b); }).starts_with("AutogradError: baddbmm_: "));
}
