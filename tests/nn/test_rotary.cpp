#include <doctest/doctest.h>
#include <sash/nn/attention/rotary.h>
#include <sash/tensor/factories.h>

#include <cmath>
#include <thread>
#include <vector>

#include "../support/compare.h"
#include "../support/expect_error.h"

/// Frequencies of 8 features with theta 10,000, from `transformers` 5.23 (modeling_rope_utils).
using namespace sash;
using namespace sash::testing;

namespace {

nn::RotaryOptions scaled(nn::RotaryScalingKind kind, double factor, int64_t context) {
  nn::RotaryOptions options;
  options.scaling.kind = kind;
  options.scaling.factor = factor;
  options.scaling.original_context = context;
  return options;
}

void check(const nn::RotaryOptions& options, int64_t length, const std::vector<double>& want,
           double factor) {
  const nn::RotaryFrequencies got = nn::rotary_frequencies(options, 8, length);
  CAPTURE(static_cast<int>(options.scaling.kind));
  CHECK(relative_error(got.frequency, want) <= 1e-7);
  for (size_t i = 0; i < want.size(); ++i) {
    CHECK(std::abs(got.frequency[i] - want[i]) <= 2e-7 * want[i]);
  }
  CHECK(std::abs(got.attention_factor - factor) <= 1e-12);
}

}  // namespace

TEST_CASE("rotary_frequencies: every kind of scaling") {
  using enum nn::RotaryScalingKind;
  const std::vector<double> plain{1, 0.1, 0.01, 0.001};
  check({}, 0, plain, 1);
  check(scaled(linear, 4, 0), 0, {0.25, 0.025, 0.0025, 0.00025}, 1);
  // theta 4^(4 / 3)
  const double step = std::pow(1e4 * std::pow(4.0, 4.0 / 3), -0.25);
  check(scaled(ntk, 4, 0), 0, {1, step, step * step, step * step * step}, 1);
  check(scaled(dynamic_ntk, 4, 16), 16, plain, 1);
  check(scaled(dynamic_ntk, 4, 16), 40,
        {1, 0.05227579548954964, 0.0027327588759362698, 0.0001428571413271129}, 1);
  check(scaled(llama3, 8, 64), 0,
        {1, 0.013042256236076355, 0.0012499999720603228, 0.0001250000059371814}, 1);
  nn::RotaryOptions ramp = scaled(yarn, 4, 64);
  ramp.scaling.beta_fast = 8;
  check(ramp, 0, {1, 0.0625, 0.0025, 0.00025}, 1.138629436111989);
  ramp.scaling.truncate = false;
  check(ramp, 0, {1, 0.025664398446679115, 0.0025, 0.00025}, 1.138629436111989);
  ramp.scaling.attention_factor = 1.5;
  check(ramp, 0, {1, 0.025664398446679115, 0.0025, 0.00025}, 1.5);
  nn::RotaryOptions each = scaled(longrope, 4, 64);
  each.scaling.short_factor = {1, 1.5, 2, 2.5};
  each.scaling.long_factor = {2, 3, 4, 5};
  check(each, 64, {1, 0.1 / 1.5, 0.005, 0.0004}, 1.1547005383792517);
  check(each, 65, {0.5, 0.1 / 3, 0.0025, 0.0002}, 1.1547005383792517);
}

TEST_CASE("RotaryTable: positions, dtypes, and lengths that change the frequencies") {
  nn::RotaryOptions options = scaled(nn::RotaryScalingKind::dynamic_ntk, 4, 80);
  options.dim = 4;
  nn::RotaryTable table(options, 6);
  const auto cosine = [&](int64_t position, int64_t pair, int64_t length) {
    const auto all = nn::rotary_frequencies(options, 4, length).frequency;
    return std::cos(static_cast<double>(position) * all[static_cast<size_t>(pair)]);
  };
  for (const auto& [first, count] : {std::pair{0, 5}, {70, 9}, {3, 1}, {90, 40}, {7, 2}}) {
    const RotaryAngles wide = table.angles(first, count, DType::float64, kCPU);
    const RotaryAngles narrow = table.angles(first, count, DType::bfloat16, kCPU);
    REQUIRE(wide.cos.shape() == Shape{count, 2});
    CHECK(wide.cos.dtype() == DType::float64);
    CHECK(narrow.sin.dtype() == DType::float32);
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t pair = 0; pair < 2; ++pair) {
        const double want = cosine(first + i, pair, first + count);
        CHECK(std::abs(wide.cos[i][pair].item<double>() - want) <= 1e-12);
        CHECK(std::abs(narrow.cos[i][pair].item<double>() - want) <= 2e-5);
      }
    }
  }
}

TEST_CASE("RotaryTable: a table that could not be made changes nothing") {
  const nn::RotaryOptions options = scaled(nn::RotaryScalingKind::dynamic_ntk, 4, 8);
  nn::RotaryTable table(options, 8), fresh(options, 8);
  table.angles(0, 5, DType::float32, kCPU);
  CHECK_THROWS(table.angles(0, 20, DType::float32, {DeviceType::cuda, 99}));
  CHECK(all_same(table.angles(0, 20, DType::float32, kCPU).cos,
                 fresh.angles(0, 20, DType::float32, kCPU).cos));
}

TEST_CASE("RotaryTable: threads may share one") {
  nn::RotaryOptions options = scaled(nn::RotaryScalingKind::dynamic_ntk, 4, 8);
  nn::RotaryTable shared(options, 8);
  std::vector<int> wrong(2);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < wrong.size(); ++i) {
    threads.emplace_back([&, i] {
      nn::RotaryTable own(options, 8);
      for (int64_t n = 0; n < 200; ++n) {
        const int64_t length = 1 + (n * (i == 0 ? 7 : 5)) % 40;
        wrong[i] += !all_same(shared.angles(0, length, DType::float32, kCPU).sin,
                              own.angles(0, length, DType::float32, kCPU).sin);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == std::vector<int>{0, 0});
}

TEST_CASE("wrong calls: rotary") {
  const std::string op = "rotary_frequencies: ";
  expect_error<ValueError>(op + "expected a positive, even number of features, got 5",
                           [] { nn::rotary_frequencies({}, 5); });
  expect_error<ValueError>(op + "expected theta > 0, got -1", [] {
    nn::RotaryOptions options;
    options.theta = -1;
    nn::rotary_frequencies(options, 4);
  });
  expect_error<ValueError>(op + "expected a positive original_context, got 0", [] {
    nn::rotary_frequencies(scaled(nn::RotaryScalingKind::yarn, 4, 0), 4);
  });
  expect_error<ValueError>(op + "expected 2 factors for longrope, got 0", [] {
    nn::rotary_frequencies(scaled(nn::RotaryScalingKind::longrope, 4, 8), 4);
  });
  expect_error<ValueError>("RotaryTable: expected at most the 4 features of a head, got 6", [] {
    nn::RotaryOptions options;
    options.dim = 6;
    nn::RotaryTable(options, 4);
  });
  const Tensor x = zeros({1, 2, 3, 4}), angles = zeros({3, 2});
  expect_error<ShapeError>(
      "rotary: expected angles [S, n] or [B, S, n] with 2 n <= D for x [B, H, S, D], got [2, 2] "
      "and [1, 2, 3, 4]",
      [&] {
        rotary(x, {zeros({2, 2}), zeros({2, 2})});
      });
  expect_error<ShapeError>(
      "rotary: expected angles [S, n] or [B, S, n] with 2 n <= D for x [B, H, S, D], got [3, 3] "
      "and [1, 2, 3, 4]",
      [&] {
        rotary(x, {zeros({3, 3}), zeros({3, 3})});
      });
  expect_error<DTypeError>("rotary: expected float64, got float32", [&] {
    rotary(x.to(DType::float64), {angles, angles});
  });
}
