#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include <sash/ops/attention/approximate/linear_attention.h>
#include <sash/ops/attention/exact/local.h>
#include <sash/ops/elementwise/binary.h>
#include <sash/ops/elementwise/compare.h>
#include <sash/ops/elementwise/glu.h>
#include <sash/ops/elementwise/unary.h>
#include <sash/ops/elementwise/where.h>
#include <sash/ops/loss/linear_cross_entropy.h>
#include <sash/ops/norm/batch_norm.h>
#include <sash/ops/norm/layer_norm.h>
#include <sash/ops/norm/softmax.h>
#include <sash/ops/reduce/norm.h>
#include <sash/ops/reduce/reduce.h>
#include <sash/ops/shape/rearrange.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>

#include "../support/compare.h"
#include "../support/devices.h"
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

TEST_CASE("a norm of negative order has no value for no elements") {
  const std::string error = "norm: expected reduced axes that are not empty, got [2, 0]";
  for (const double p : {-1.0, -0.5, -std::numeric_limits<double>::infinity()}) {
    expect_error<ShapeError>(error, [&] { norm(empty({2, 0}), p, {1}); });
    CHECK(norm(empty({0, 2}), p, {1}).numel() == 0);
  }
  CHECK(norm(empty({2, 0}), 3, {1}).to_vector<double>() == std::vector<double>{0, 0});
}

TEST_CASE("randint favours no number of a range that is no power of two") {
  manual_seed(5);
  // With 32 random bits the numbers below 2^32 - 3e9 would come twice as often as the others.
  constexpr int64_t high = 3'000'000'000, favoured = (int64_t{1} << 32) - high;
  int64_t below = 0;
  for (const int64_t x : randint(0, high, {20000}).to_vector<int64_t>()) below += x < favoured;
  const double share = static_cast<double>(favoured) / static_cast<double>(high);
  CHECK(std::abs(static_cast<double>(below) / 20000 - share) < 0.02);
  below = 0;
  const Tensor half = randint(-1'500'000'000, 1'500'000'000, {20000}, {.dtype = DType::int32});
  for (const int64_t x : half.to_vector<int64_t>()) below += x + 1'500'000'000 < favoured;
  CHECK(std::abs(static_cast<double>(below) / 20000 - share) < 0.02);
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
  CHECK(random_state().offset == 6);
  randint(0, int64_t{1} << 20, {5});
  CHECK(random_state().offset == 8);
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
  CHECK(var(x, {0}, kMost).item<double>() == kInfinity);
  CHECK(var(x, {0}, kLeast).item<double>() == doctest::Approx(14.0 / 3 / 0x1p63));
  CHECK(std::isnan(var(doubles({}), {0}, -1).item<double>()));
}

TEST_CASE("a variance that float32 cannot hold is infinite") {
  const Tensor x = tensor<float>({1e30F, 0, 0, 0});
  CHECK(var(x).item<double>() == kInfinity);
  CHECK(sash::std(x).item<float>() == 0.5e30F);
  CHECK(std::isnan(var(tensor<float>({1e30F, NAN})).item<double>()));
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

TEST_CASE("exp and expm1 are finite until their results have to be infinite") {
  std::vector<float> at;
  for (int i = 0; i < 100; ++i) at.push_back(80.f + 0.1f * static_cast<float>(i));
  at.push_back(std::log(std::numeric_limits<float>::max()));
  const Tensor x = tensor(at, {static_cast<int64_t>(at.size())});
  for (const Tensor& y : {exp(x), expm1(x)}) {
    const std::vector<float> found = y.to_vector<float>();
    for (size_t i = 0; i < at.size(); ++i) {
      CAPTURE(at[i]);
      const float expected = std::exp(at[i]);
      if (std::isfinite(expected)) CHECK(std::abs(found[i] / expected - 1) < 1e-6f);
      if (!std::isfinite(expected)) CHECK(found[i] == expected);
    }
  }
}

TEST_CASE("exp is that of the standard library, but 0 where that is subnormal") {
  const auto check = [](DType dtype, double least, double most, double units) {
    CAPTURE(name(dtype));
    const int64_t n = 20003;
    const Tensor x = linspace(least, most, n, {.dtype = DType::float64}).to(dtype);
    const std::vector<double> at = x.to_vector<double>(), found = exp(x).to_vector<double>();
    const double normal = dtype == DType::float64 ? std::numeric_limits<double>::min()
                                                  : std::numeric_limits<float>::min();
    double worst = 0;
    for (size_t i = 0; i < at.size(); ++i) {
      const double expected = std::exp(at[i]);
      if (expected < normal) {
        CHECK(found[i] <= normal);
      } else {
        worst = std::max(worst, std::abs(found[i] / expected - 1));
      }
    }
    CHECK(worst <= units);
    const Tensor ends = tensor<double>({-kInfinity, kInfinity, NAN}, {3}).to(dtype);
    const std::vector<double> of_ends = exp(ends).to_vector<double>();
    CHECK(of_ends[0] == 0);
    CHECK(of_ends[1] == kInfinity);
    CHECK(std::isnan(of_ends[2]));
  };
  check(DType::float32, -90, 88.72, 1.5e-7);
  check(DType::bfloat16, -90, 88.5, 0x1p-8);
  check(DType::float16, -9, 11, 0x1p-11);
  check(DType::float64, -710, 709.7, 1e-15);
}

TEST_CASE("variances do not suffer from a mean far from zero") {
  manual_seed(2);
  const Tensor x = randn({64, 300}, {.dtype = DType::float32}) + 1e6;
  const Tensor wide = x.to(DType::float64);
  for (const Dims& axes : {Dims{0}, Dims{1}, Dims{0, 1}}) {
    CHECK(relative_error(var(x, axes).to(DType::float64), var(wide, axes)) < 1e-6);
  }
  const Tensor even = full({64, 3}, 0.1f + 1e6f, {.dtype = DType::float32});
  CHECK(sash::std(even, {0}).to_vector<float>() == ::std::vector<float>{0, 0, 0});
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
  CHECK((zero.clone() -= kLeast).item<double>() == 0x1p63);
  constexpr int32_t least = std::numeric_limits<int32_t>::min();
  Tensor x = tensor<int32_t>({-1});
  CHECK((x - least).item<int32_t>() == std::numeric_limits<int32_t>::max());
  CHECK((x -= least).item<int32_t>() == std::numeric_limits<int32_t>::max());
}

TEST_CASE("clamp is flat at NaN, and at its bounds") {
  Tensor x = variable({NAN, -2, -1, 0, 1, 2, kInfinity});
  const Tensor w = doubles({1, 2, 3, 4, 5, 6, 7});
  const auto gradient = [&](std::optional<Scalar> low, std::optional<Scalar> high) {
    return grad({clamp(x, low, high)}, {x}, {w})[0].to_vector<double>();
  };
  CHECK(gradient(-1, 1) == std::vector<double>{0, 0, 0, 4, 0, 0, 0});
  CHECK(gradient(-1, std::nullopt) == std::vector<double>{0, 0, 0, 4, 5, 6, 7});
  CHECK(gradient(std::nullopt, 1) == std::vector<double>{0, 2, 3, 4, 0, 0, 0});
  CHECK(gradient(0, 0) == std::vector<double>{0, 0, 0, 0, 0, 0, 0});
  Tensor g = w.clone().requires_grad_();
  const Tensor first = grad({clamp(x, -1, 1)}, {x}, {g}, {.create_graph = true})[0];
  CHECK(grad({first}, {g}, {w})[0].to_vector<double>() == std::vector<double>{0, 0, 0, 4, 0, 0, 0});
}

TEST_CASE_TEMPLATE("linear attention: features have slope 1 at 0 in both derivatives", On, Cpu,
                   Cuda) {
  if (missing(On::device)) return;
  manual_seed(6);
  const TensorOptions options{.dtype = DType::float64, .device = On::device};
  const auto some_zeros = [&] {
    const Tensor x = randn({1, 2, 6, 4}, options);
    return masked_fill(x, gt(randn(x.shape(), options), 0), 0).detach().requires_grad_();
  };
  const Tensor q = some_zeros(), k = some_zeros(), v = randn({1, 2, 6, 4}, options);
  const Tensor g = randn(v.shape(), options);
  const std::vector<Tensor> fused = grad({linear_attention(q, k, v)}, {q, k}, {g});
  const std::vector<Tensor> plain =
      grad({linear_attention(q, k, v)}, {q, k}, {g}, {.create_graph = true});
  for (size_t i = 0; i < 2; ++i) CHECK(relative_error(plain[i].detach(), fused[i]) < 1e-12);
}

TEST_CASE("maximum and minimum: where one is NaN both get the gradient") {
  Tensor a = variable({NAN, 1, NAN, 2, 2}), b = variable({1, NAN, NAN, 2, 1});
  const Tensor w = doubles({1, 2, 3, 4, 5});
  const auto check = [&](const Tensor& y, const std::vector<double>& to_a,
                         const std::vector<double>& to_b) {
    const std::vector<Tensor> grads = grad({y}, {a, b}, {w});
    CHECK(grads[0].to_vector<double>() == to_a);
    CHECK(grads[1].to_vector<double>() == to_b);
  };
  check(maximum(a, b), {1, 2, 3, 2, 5}, {1, 2, 3, 2, 0});
  check(minimum(a, b), {1, 2, 3, 2, 0}, {1, 2, 3, 2, 5});
}

TEST_CASE_TEMPLATE("glu: gradients of NaN and at the clamps are those of plain ops", On, Cpu,
                   Cuda) {
  if (missing(On::device)) return;
  const Tensor x = tensor<double>({NAN, 1, 8, NAN, 7, 8,    // gates
                                   1, NAN, NAN, 8, -7, 1},  // values
                                  {12}, {.dtype = DType::float64, .device = On::device})
                       .requires_grad_();
  for (const GluKind kind :
       {GluKind::swiglu, GluKind::geglu, GluKind::geglu_tanh, GluKind::clamped_swiglu}) {
    const Tensor g = ones({6}, {.dtype = DType::float64, .device = On::device});
    const Tensor fused = grad({glu(x, kind)}, {x}, {g})[0];
    const Tensor plain = grad({glu(x, kind)}, {x}, {g}, {.create_graph = true})[0].detach();
    CHECK(isnan(fused).to_vector<bool>() == isnan(plain).to_vector<bool>());
    CHECK(largest_difference(masked_fill(fused, isnan(fused), 0),
                             masked_fill(plain, isnan(plain), 0)) < 1e-12);
    if (kind != GluKind::clamped_swiglu) continue;
    for (const int64_t at_limit : {2, 4, 5, 9, 10})
      CHECK(fused[at_limit].template item<double>() == 0);
  }
}

TEST_CASE("the norm of numbers whose squares float32 cannot hold") {
  for (const double size : {1e-30, 1e-20, 1.0, 1e20, 1e30}) {
    CAPTURE(size);
    const Tensor x = full({600, 600}, size);
    for (const int64_t axis : {0, 1}) {
      const Tensor y = norm(x, 2, {axis});
      CHECK(y[7].item<double>() / size == doctest::Approx(std::sqrt(600)).epsilon(1e-6));
    }
    CHECK(norm(x).item<double>() / size == doctest::Approx(600).epsilon(1e-6));
    CHECK(norm(x.slice(1, 0, 600, 2), 2, {1})[7].item<double>() / size ==
          doctest::Approx(std::sqrt(300)).epsilon(1e-5));
  }
  CHECK(norm(zeros({3}), 2).item<double>() == 0);
  CHECK(norm(full({3}, kInfinity), 2).item<double>() == kInfinity);
  CHECK(std::isnan(norm(full({3}, NAN), 2).item<double>()));
}

TEST_CASE("softmax over any axis is row-major") {
  const Tensor x = randn({3, 4});
  for (const int64_t axis : {0, 1, -2}) {
    CHECK(softmax(x, axis).is_contiguous());
    CHECK(softmax(x, axis).view({12}).numel() == 12);
    CHECK(log_softmax(x, axis).view({12}).numel() == 12);
  }
}

TEST_CASE("a loss of which every target is ignored has gradients of 0") {
  const Tensor x = ones({2, 3}).requires_grad_(), w = ones({4, 3}).requires_grad_();
  const Tensor loss = linear_cross_entropy(x, w, tensor<int64_t>({-100, -100}));
  CHECK(std::isnan(loss.item<double>()));
  loss.backward();
  CHECK(x.grad().abs().amax().item<float>() == 0);
  CHECK(w.grad().abs().amax().item<float>() == 0);
}

TEST_CASE("layer_norm of long constant rows is 0") {
  for (const int64_t n : {7, 512, 4096, 100000}) {
    for (int k = 1; k < 200; k += 33) {
      CHECK(layer_norm(full({1, n}, 0.37 * k), {n}).abs().amax().item<float>() < 1e-4f);
    }
  }
  const Tensor far = randn({1, 1 << 20}, {.dtype = DType::float64}) + 100;
  const Tensor found = layer_norm(far.to(DType::float32), {1 << 20}).to(DType::float64);
  CHECK((found - layer_norm(far, {1 << 20})).abs().amax().item<double>() < 4e-5);
}

TEST_CASE("batch_norm of no elements leaves running statistics as they are") {
  const Tensor mean = doubles({3, 4}), var = doubles({5, 6});
  for (const Shape& shape : {Shape{0, 2}, Shape{3, 2, 0}}) {
    const Tensor x = zeros(shape, {.dtype = DType::float64}).requires_grad_();
    const Tensor weight = variable({1, 2}), bias = variable({0, 1});
    batch_norm(x, mean, var, weight, bias, {.training = true}).sum().backward();
    CHECK(mean.to_vector<double>() == std::vector<double>{3, 4});
    CHECK(var.to_vector<double>() == std::vector<double>{5, 6});
    CHECK(x.grad().shape() == shape);
    CHECK(weight.grad().to_vector<double>() == std::vector<double>{0, 0});
    CHECK(bias.grad().to_vector<double>() == std::vector<double>{0, 0});
  }
}

TEST_CASE("a scalar beyond float16 is divided by one") {
  const Tensor y = 70000.0 / full({1}, 60000.0, {.dtype = DType::float16});
  CHECK(y.dtype() == DType::float16);
  CHECK(y.item<double>() == doctest::Approx(7.0 / 6).epsilon(1e-3));
}

TEST_CASE("the product of no elements has a history") {
  const Tensor x = zeros({0, 3}).requires_grad_();
  const Tensor y = prod(x);
  CHECK(y.item<float>() == 1);
  y.backward();
  CHECK(x.grad().shape() == Shape{0, 3});
  CHECK(prod(x, {0}).to_vector<float>() == std::vector<float>{1, 1, 1});
  CHECK(prod(zeros({0}, {.dtype = DType::int32})).dtype() == DType::int64);
}

TEST_CASE("local_dot_product: a mask leaves hidden keys alone") {
  const Tensor q = ones({1, 1, 1, 1}), mask = full({1, 1}, 2.0).requires_grad_();
  const Tensor a = local_dot_product(
      q, q, 1, {.attn_mask = mask, .key_lengths = tensor<int32_t>({0}), .fill = -5});
  CHECK(a.item<float>() == -5);
  a.sum().backward();
  CHECK(mask.grad().item<float>() == 0);
}

TEST_CASE("elu has the slope of its left side at 0") {
  for (const DType dtype : {DType::float32, DType::float64}) {
    const Tensor x = zeros({3}, {.dtype = dtype, .device = kCPU, .requires_grad = true});
    elu(x, 0.25).sum().backward();
    CHECK(all_equal(x.grad(), 0.25));
  }
}

TEST_CASE("repeat never shares memory with its argument") {
  const Tensor x = ones({2, 3}), y = repeat(x, {1, 1}), z = repeat(x, {1, 1, 1});
  x.data<float>()[0] = 5;
  CHECK(all_equal(y, 1));
  CHECK(all_equal(z, 1));
}
