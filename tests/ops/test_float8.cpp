// FP8 products: casts against a search among all numbers of the format, layers and their gradients
// against float64 products of the cast operands, and what has no FP8 product.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include <sash/ops/kernels/float8.h>
#include <sash/ops/linalg/linear_float8.h>
#include <sash/sash.h>
#include <sash/tensor/run_kernel.h>

#include "../support/compare.h"
#include "../support/devices.h"
#include "../support/expect_error.h"
#include "../support/float8.h"

using namespace sash;
using namespace sash::testing;
using kernels::Float8;

namespace {

constexpr Float8 kFormats[] = {Float8::e4m3, Float8::e5m2};
constexpr DType kOperands[] = {DType::float32, DType::float16, DType::bfloat16};
constexpr GluKind kGates[] = {GluKind::swiglu, GluKind::geglu, GluKind::geglu_tanh,
                              GluKind::clamped_swiglu};
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinite = std::numeric_limits<double>::infinity();

struct Cast {
  Tensor rows, columns, inverse;
};

Cast cast(const Tensor& x, Float8 format) {
  const TensorOptions bytes{.dtype = DType::uint8, .device = x.device()};
  const int64_t height = x.size(0), width = x.size(1);
  const Cast to{empty({height, width}, bytes), empty({width, height}, bytes),
                empty({1}, {.dtype = DType::float32, .device = x.device()})};
  run_kernel(kernels::float8_cast, x, Tensor(), std::optional<kernels::Gate>(), format, to.rows,
             to.columns, to.inverse);
  return to;
}

/// x [.., n] after a cast with one scale, in float64 on the CPU.
Tensor cast_and_back(const Tensor& x, Float8 format) {
  const std::vector<double> values = quantised(x.detach().to_vector<double>(), format);
  return tensor(values, x.shape(), {.dtype = DType::float64, .device = kCPU});
}

Tensor exact(const Tensor& x) { return x.detach().to(kCPU).to(DType::float64); }

/// Results and gradients may be off by a rounding of the dtype, and on a card by fast sums.
double limit_of(DType dtype, Device device) {
  const double rounding = dtype == DType::bfloat16 ? 0x1p-8 : dtype == DType::float16 ? 0x1p-11 : 0;
  return rounding + (device.is_cpu() ? 1e-6 : 2e-3);
}

void check_scales(Device device, Float8 format) {
  const double most = static_cast<double>(kernels::largest_of(format));
  const auto with = [&](double value) {
    Tensor x = ones({16, 32}, {.device = device});
    x[3].fill_(value);
    return cast(x, format);
  };
  CHECK(cast(zeros({16, 16}, {.device = device}), format).inverse.item<double>() == 1);
  CHECK(with(0).inverse.item<float>() == 1 / static_cast<float>(most));
  CHECK(with(-most * 4).inverse.item<double>() == 4);
  for (const double value : {kInfinite, -kInfinite, kNone}) {
    const Cast found = with(value);
    CHECK(found.inverse.item<double>() == 1);
    const int64_t code = float8_code(value, format);
    CHECK(found.rows[3][5].item<int64_t>() == code);
    CHECK(found.columns[5][3].item<int64_t>() == code);
    CHECK(found.rows[4][5].item<int64_t>() == float8_code(1, format));
  }
  // 448 / 1e-37 is above float32's range.
  const Cast tiny = cast(full({16, 16}, 1e-37, {.device = device}), format);
  CHECK(tiny.inverse.item<double>() == 0x1p-126);
  const double scaled = static_cast<double>(1e-37F) * 0x1p126;
  CHECK(tiny.rows[0][0].item<int64_t>() == float8_code(scaled, format));
}

}  // namespace

TEST_CASE_TEMPLATE("float8: casts round to nearest even and saturate", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  for (const Float8 format : kFormats) {
    // All numbers, what is halfway between two of them and beside that, at a scale of 1.
    const std::vector<double> values = float8_values(format);
    std::vector<float> numbers;
    for (size_t i = 0; i + 1 < values.size(); ++i) {
      const auto half = static_cast<float>((values[i] + values[i + 1]) / 2);
      for (const float x : {static_cast<float>(values[i]), half, std::nextafter(half, 0.0F),
                            std::nextafter(half, 1e9F)}) {
        numbers.push_back(x);
        numbers.push_back(-x);
      }
    }
    numbers.push_back(kernels::largest_of(format));
    const auto count = static_cast<int64_t>(numbers.size()), rows = (count + 255) / 256 * 16;
    numbers.resize(static_cast<size_t>(rows * 16), 0.0F);
    const Tensor x = tensor(numbers, {rows, 16}, {.dtype = DType::float32, .device = On::device});
    const Cast found = cast(x, format);
    CHECK(found.inverse.item<double>() == 1);
    const std::vector<int64_t> codes = found.rows.to_vector<int64_t>();
    for (size_t i = 0; i < numbers.size(); ++i) {
      INFO(numbers[i]);
      CHECK(codes[i] == float8_code(static_cast<double>(numbers[i]), format));
    }
    CHECK(all_same(found.columns, found.rows.mT().contiguous()));
  }
}

TEST_CASE_TEMPLATE("float8: the scale of zeros, infinity, NaN and tiny numbers", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  for (const Float8 format : kFormats) check_scales(On::device, format);
}

TEST_CASE("float8: casts have the CPU's bits, at the edges of tiles too<cuda>") {
  if (missing(kCUDA)) return;
  manual_seed(1);
  for (const Shape& shape : {Shape{16, 16}, Shape{144, 80}, Shape{128, 64}, Shape{400, 208},
                             Shape{16, 4096}, Shape{4096, 16}, Shape{1040, 2064}}) {
    for (const DType dtype : kOperands) {
      const Tensor x = randn(shape, {.device = kCPU}).to(dtype);
      for (const Float8 format : kFormats) {
        const Cast here = cast(x, format), there = cast(x.to(kCUDA), format);
        CHECK(all_same(there.rows.to(kCPU), here.rows));
        CHECK(all_same(there.columns.to(kCPU), here.columns));
        CHECK(all_same(there.inverse.to(kCPU), here.inverse));
      }
    }
  }
}

TEST_CASE_TEMPLATE("float8: a linear layer and its gradients", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  for (const DType dtype : kOperands) {
    for (const bool with_bias : {true, false}) {
      manual_seed(3);
      const TensorOptions options{.dtype = dtype, .device = On::device};
      const Tensor x = randn({3, 48, 96}, options).requires_grad_();
      const Tensor w = (randn({80, 96}, options) * 0.1).detach().requires_grad_();
      const Tensor b = with_bias ? randn({80}, options).requires_grad_() : Tensor();
      const Tensor g = randn({3, 48, 80}, options);
      const Tensor y = linear_float8(x, w, b);
      CHECK(y.dtype() == dtype);
      y.backward(g);
      const Tensor x8 = cast_and_back(x, Float8::e4m3), w8 = cast_and_back(w, Float8::e4m3);
      const Tensor g8 = cast_and_back(g, Float8::e5m2).view({144, 80});
      const double limit = limit_of(dtype, On::device);
      CHECK(relative_error(y, linear(x8, w8, b.defined() ? exact(b) : Tensor())) < limit);
      CHECK(relative_error(x.grad(), matmul(g8, w8)) < limit);
      CHECK(relative_error(w.grad(), matmul(g8.mT(), x8.view({144, 96}))) < limit);
      if (with_bias) CHECK(relative_error(b.grad(), exact(g).sum({0, 1})) < limit);
      // The casts lose about three digits of an operand, and no more.
      CHECK(relative_error(y, linear(exact(x), exact(w), b.defined() ? exact(b) : Tensor())) < 0.1);
    }
  }
}

TEST_CASE("cuda float8: products whose algorithm a table names are right") {
  if (missing(kCUDA)) return;
  struct Sizes {
    int64_t in, out;
  };
  for (const Sizes& s : {Sizes{2048, 3072}, {2048, 2048}, {2048, 16384}, {8192, 2048}}) {
    CAPTURE(s.in);
    CAPTURE(s.out);
    manual_seed(6);
    const TensorOptions options{.dtype = DType::bfloat16, .device = kCUDA};
    const Tensor x = randn({16384, s.in}, options).requires_grad_();
    const Tensor w = randn({s.out, s.in}, options).requires_grad_();
    const Tensor g = randn({16384, s.out}, options);
    const auto results = [&](const Tensor& y) {
      std::vector<Tensor> all = grad({y}, {x, w}, {g});
      all.push_back(y.detach());
      return all;
    };
    const std::vector<Tensor> found = results(linear_float8(x, w)), half = results(linear(x, w));
    for (size_t i = 0; i < found.size(); ++i) {
      const Tensor wanted = half[i].to(DType::float32);
      const Tensor apart = (found[i].to(DType::float32) - wanted).square().sum();
      CHECK(std::sqrt(apart.item<double>() / wanted.square().sum().item<double>()) < 0.1);
    }
  }
}

TEST_CASE_TEMPLATE("float8: only the gradients that are needed", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  manual_seed(5);
  const TensorOptions options{.dtype = DType::bfloat16, .device = On::device};
  const Tensor x = randn({32, 64}, options), w = randn({48, 64}, options);
  const Tensor up = randn({64, 64}, options), down = randn({48, 32}, options);
  const Tensor g = randn({32, 48}, options);
  const auto run = [&](int which, bool mlp) {
    const auto leaf = [&](const Tensor& t, int i) {
      return t.detach().requires_grad_(which == 3 || which == i);
    };
    const std::vector<Tensor> in{leaf(x, 0), leaf(mlp ? up : w, 1), leaf(down, 2)};
    const Tensor y = mlp ? glu_mlp_float8(in[0], in[1], in[2]) : linear_float8(in[0], in[1]);
    y.backward(g);
    return std::vector<Tensor>{y.detach(), in[0].grad(), in[1].grad(), in[2].grad()};
  };
  for (const bool mlp : {false, true}) {
    const std::vector<Tensor> all = run(3, mlp);
    for (int i = 0; i < (mlp ? 3 : 2); ++i) {
      const auto at = static_cast<size_t>(i) + 1;
      const std::vector<Tensor> one = run(i, mlp);
      CHECK(all_same(one[0], all[0]));
      for (size_t k = 1; k < 4; ++k) {
        CHECK(one[k].defined() == (k == at));
        if (k == at) CHECK(all_same(one[k], all[k]));
      }
    }
    const NoGradGuard no_grad;
    CHECK(all_same(mlp ? glu_mlp_float8(x, up, down) : linear_float8(x, w), all[0]));
  }
}

TEST_CASE_TEMPLATE("float8: extents that are no multiples of 16 multiply as ever", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  manual_seed(7);
  const TensorOptions options{.dtype = DType::bfloat16, .device = On::device};
  struct Sizes {
    int64_t rows, in, out;
  };
  for (const Sizes& s : {Sizes{15, 32, 32}, {32, 24, 32}, {32, 32, 40}, {0, 32, 32}, {16, 0, 16}}) {
    const Tensor x = randn({s.rows, s.in}, options).requires_grad_();
    const Tensor w = randn({s.out, s.in}, options).requires_grad_();
    const Tensor g = randn({s.rows, s.out}, options);
    const Tensor y = linear_float8(x, w), wanted = linear(x, w);
    CHECK(all_same(y.detach(), wanted.detach()));
    const std::vector<Tensor> found = grad({y}, {x, w}, {g}), as_ever = grad({wanted}, {x, w}, {g});
    CHECK(all_same(found[0], as_ever[0]));
    CHECK(all_same(found[1], as_ever[1]));
  }
}

TEST_CASE_TEMPLATE("float8: a gated MLP has the bits of its parts", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  for (const DType dtype : {DType::bfloat16, DType::float16}) {
    for (const GluKind kind : kGates) {
      manual_seed(9);
      const TensorOptions options{.dtype = dtype, .device = On::device};
      const std::array<Tensor, 3> in{randn({2, 144, 64}, options), randn({160, 64}, options) * 0.3,
                                     randn({48, 80}, options) * 0.3};
      const Tensor g = randn({2, 144, 48}, options);
      const auto results = [&](const auto& mlp) {
        std::vector<Tensor> leaves;
        for (const Tensor& t : in) leaves.push_back(t.detach().requires_grad_());
        const Tensor y = mlp(leaves[0], leaves[1], leaves[2], kind);
        std::vector<Tensor> all = grad({y}, leaves, {g});
        all.push_back(y.detach());
        return all;
      };
      const std::vector<Tensor> fused = results(glu_mlp_float8);
      const std::vector<Tensor> parts = results(composite::glu_mlp_float8);
      for (size_t i = 0; i < fused.size(); ++i) CHECK(all_same(fused[i], parts[i]));
    }
  }
}

TEST_CASE_TEMPLATE("float8: products make no NaN of their own", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  const TensorOptions options{.dtype = DType::bfloat16, .device = On::device};
  const Tensor zero = zeros({32, 32}, options), one = ones({32, 32}, options);
  const Tensor x = zeros({32, 32}, options).requires_grad_();
  const Tensor w = ones({32, 32}, options).requires_grad_();
  const Tensor y = linear_float8(x, w);
  CHECK(all_equal(y, 0));
  y.backward(zero);
  CHECK(all_equal(x.grad(), 0));
  CHECK(all_equal(w.grad(), 0));
  Tensor large = one.clone();
  large[2].fill_(kInfinite);
  const Tensor saturated = linear_float8(large, one);
  CHECK(all_equal(saturated[2], 32 * 448.0));
  CHECK(all_equal(saturated[3], 32));
  // In a gradient an infinity stays, for the scaler of a loss in float16.
  const Tensor from = ones({32, 32}, options).requires_grad_();
  linear_float8(from, one).backward(large);
  CHECK(all_equal(from.grad()[2], kInfinite));
  CHECK(all_equal(from.grad()[3], 32));
  Tensor bad = one.clone();
  bad[2].fill_(kNone);
  const std::vector<double> rows = linear_float8(bad, one).to_vector<double>();
  for (size_t i = 0; i < rows.size(); ++i) CHECK(std::isnan(rows[i]) == (i / 32 == 2));
}

TEST_CASE("float8: under autocast, a layer of float32 multiplies halves in FP8") {
  manual_seed(11);
  const Tensor x = randn({32, 48}), w = randn({64, 48}).requires_grad_();
  const AutocastGuard autocast(DType::bfloat16);
  const Tensor y = linear_float8(x, w);
  CHECK(y.dtype() == DType::bfloat16);
  y.sum().backward();
  CHECK(w.grad().dtype() == DType::float32);
  const NoAutocastGuard plain;
  CHECK(all_same(y.detach(), linear_float8(x.to(y.dtype()), w.detach().to(y.dtype()))));
}

TEST_CASE("float8: wrong calls") {
  const Tensor x = zeros({16, 32}), w = zeros({16, 32});
  CHECK(thrown_by([&] { linear_float8(x.to(DType::float64), w.to(DType::float64)); }) ==
        "DTypeError: linear_float8: expected float32, float16 or bfloat16, got float64");
  CHECK(thrown_by([&] { linear_float8(x, w.to(DType::bfloat16)); }).starts_with("DTypeError"));
  CHECK(thrown_by([&] { linear_float8(x, zeros({16, 16})); }).starts_with("ShapeError"));
  CHECK(thrown_by([&] { linear_float8(x, w, zeros({32})); }).starts_with("ShapeError"));
  CHECK(thrown_by([&] { glu_mlp_float8(x, zeros({64, 32}), w); }) == "nothing was thrown");
  CHECK(thrown_by([&] {
          glu_mlp_float8(x, zeros({48, 32}), w);
        }) ==
        "ShapeError: glu_mlp_float8: expected weight1 [2 hidden, in] with the hidden of weight2 "
        "[out, hidden], got [48, 32] and [16, 32]");
  const Tensor leaf = ones({16, 32}).requires_grad_();
  const Tensor y = linear_float8(leaf, w);
  CHECK(thrown_by([&] { grad({y.sum()}, {leaf}, {}, {.create_graph = true}); }) ==
        "NotImplemented: linear_float8: a second derivative");
}
