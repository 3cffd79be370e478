// A product of few rows with what stands around it, against the separate ops in float64.
#include <doctest/doctest.h>

#include <sash/ops/attention/exact/linear_step.h>
#include <sash/ops/linalg/linear.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>

#include "../support/compare.h"
#include "../support/devices.h"
#include "../support/expect_error.h"

using namespace sash;
using namespace sash::testing;

namespace {

struct Case {
  int64_t rows, in, out;
  DType dtype = DType::float32;
  bool norm = false, bias = false, residual = false;
  std::optional<GluKind> gate{};
};

void check(const Case& c, Device device) {
  INFO(c.rows, " rows, ", c.in, " -> ", c.out);
  manual_seed(5);
  const auto made = [&](const Shape& shape) { return randn(shape).to(c.dtype); };
  const int64_t width = c.gate ? c.out / 2 : c.out;
  const Tensor x = made({c.rows, 1, c.in});
  const Tensor weight = (randn({c.out, c.in}) * 0.1).to(c.dtype);
  LinearStepOptions options{.norm = {.eps = 1e-5, .unit_offset = c.bias}, .gate = c.gate};
  if (c.norm) options.norm_weight = made({c.in});
  if (c.bias) options.bias = made({c.out});
  if (c.residual) options.residual = made({c.rows, 1, width});
  LinearStepOptions exact = options, there = options;
  for (Tensor LinearStepOptions::*part :
       {&LinearStepOptions::norm_weight, &LinearStepOptions::bias, &LinearStepOptions::residual}) {
    if (!(options.*part).defined()) continue;
    exact.*part = (options.*part).to(DType::float64);
    there.*part = (options.*part).to(device);
  }
  if (!c.norm) exact.norm.unit_offset = there.norm.unit_offset = false;
  const Tensor expected =
      composite::linear_step(x.to(DType::float64), weight.to(DType::float64), exact);
  const Tensor found = linear_step(x.to(device), weight.to(device), there);
  REQUIRE(found.shape() == Shape{c.rows, 1, width});
  CHECK(relative_error(found, expected) < (c.dtype == DType::float32 ? 2e-6 : 1e-2));
  const Tensor x_there = x.to(device), weight_there = weight.to(device);
  synchronize(device);
  there.weight_at_rest = true;
  CHECK(all_same(linear_step(x_there, weight_there, there).to(kCPU), found.to(kCPU)));
  // On a card, a row is what it is alone.
  if (c.rows > 4 || device.is_cpu()) return;
  there.residual = c.residual ? there.residual.narrow(0, 0, 1) : Tensor();
  const Tensor first = linear_step(x.to(device).narrow(0, 0, 1), weight.to(device), there);
  CHECK(all_same(first.to(kCPU), found.narrow(0, 0, 1).to(kCPU)));
}

}  // namespace

TEST_CASE_TEMPLATE("linear step: norms, gates and sums around products of few rows", On, Cpu,
                   Cuda) {
  if (missing(On::device)) return;
  for (const Case& c : std::initializer_list<Case>{
           {.rows = 1, .in = 8, .out = 5},
           {.rows = 1, .in = 576, .out = 960, .norm = true},
           {.rows = 3, .in = 576, .out = 576, .bias = true, .residual = true},
           {.rows = 1, .in = 576, .out = 3072, .norm = true, .gate = GluKind::swiglu},
           {.rows = 4,
           .in = 64,
           .out = 34,
           .norm = true,
           .bias = true,
           .residual = true,
           .gate = GluKind::geglu_tanh},
           {.rows = 2, .in = 1536, .out = 576, .residual = true},
           {.rows = 1, .in = 4096, .out = 66, .norm = true, .gate = GluKind::geglu},
           {.rows = 2, .in = 40, .out = 12, .bias = true, .gate = GluKind::clamped_swiglu},
           {.rows = 1, .in = 64, .out = 4200},
           {.rows = 1, .in = 576, .out = 4100, .dtype = DType::bfloat16},
           {.rows = 1,
           .in = 576,
           .out = 3072,
           .dtype = DType::bfloat16,
           .norm = true,
           .gate = GluKind::swiglu},
           {.rows = 4, .in = 576, .out = 576, .dtype = DType::bfloat16, .residual = true},
           {.rows = 2, .in = 264, .out = 130, .dtype = DType::float16, .norm = true, .bias = true},
           // More rows of weights than a card has teams of lanes, and longer ones than these hold.
           {.rows = 1, .in = 520, .out = 4500, .bias = true},
           {.rows = 4, .in = 64, .out = 9000, .dtype = DType::bfloat16, .residual = true},
           {.rows = 3, .in = 2056, .out = 2200, .dtype = DType::bfloat16, .norm = true},
           {.rows = 1,
           .in = 1032,
           .out = 9000,
           .dtype = DType::bfloat16,
           .norm = true,
           .residual = true,
           .gate = GluKind::swiglu},
           {.rows = 4, .in = 4096, .out = 40, .residual = true},
           {.rows = 6, .in = 16, .out = 8, .norm = true, .residual = true},
           {.rows = 1, .in = 13, .out = 7, .norm = true},
       }) {
    check(c, On::device);
  }
}

TEST_CASE_TEMPLATE("linear step: linear of few rows, and of slices", On, Cpu, Cuda) {
  const Device device = On::device;
  if (missing(device)) return;
  manual_seed(6);
  for (const int64_t rows : {1, 2, 3, 4, 5}) {
    const Tensor x = randn({rows, 96}), weight = randn({40, 96}), bias = randn({40});
    const Tensor expected =
        linear(x.to(DType::float64), weight.to(DType::float64), bias.to(DType::float64));
    const auto on = [&](const Tensor& t) { return t.to(device); };
    CHECK(relative_error(linear(on(x), on(weight), on(bias)), expected) < 2e-6);
    // Rows that lie apart, and columns that begin anywhere.
    const Tensor part = linear(on(x).narrow(1, 3, 32), on(weight).narrow(1, 5, 32));
    const Tensor wanted =
        linear(x.narrow(1, 3, 32).to(DType::float64), weight.narrow(1, 5, 32).to(DType::float64));
    CHECK(relative_error(part, wanted) < 2e-6);
    const Tensor turned = linear(on(x), on(weight.mT().contiguous()).mT());
    CHECK(relative_error(turned, linear(x.to(DType::float64), weight.to(DType::float64))) < 2e-6);
  }
}

TEST_CASE("linear step: wrong calls") {
  const Tensor x = zeros({1, 8}), weight = zeros({6, 8});
  const std::string op = ": linear_step: expected ";
  expect_errors({
      {"ShapeError" + op + "x [..., in] and weight [out, in] with one in, got [1, 7] and [6, 8]",
       [&] {
         linear_step(zeros({1, 7}), weight);
       }},
      {"ShapeError" + op + "shape [8], got [6]",
       [&] { linear_step(x, weight, {.norm_weight = zeros({6})}); }},
      {"ShapeError" + op + "an even out, gates and values, got [5, 8]",
       [&] {
         linear_step(x, zeros({5, 8}), {.gate = GluKind::swiglu});
       }},
      {"ShapeError" + op + "shape [1, 3], got [1, 6]",
       [&] {
         linear_step(x, weight, {.gate = GluKind::swiglu, .residual = zeros({1, 6})});
       }},
  });
}
