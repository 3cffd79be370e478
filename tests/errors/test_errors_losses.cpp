// Wrong calls of losses. Types and texts are those that a reader needs to find the mistake.
#include <doctest/doctest.h>

#include <sash/ops/elementwise/binary.h>
#include <sash/ops/loss/binary_cross_entropy.h>
#include <sash/ops/loss/cross_entropy.h>
#include <sash/ops/loss/huber_loss.h>
#include <sash/ops/loss/kl_div.h>
#include <sash/ops/loss/l1_loss.h>
#include <sash/ops/loss/mse_loss.h>
#include <sash/ops/loss/nll_loss.h>
#include <sash/ops/loss/smooth_l1_loss.h>
#include <sash/tensor/factories.h>

#include <cmath>
#include <limits>

#include "../support/expect_error.h"

using namespace sash;
using namespace sash::testing;

namespace {

constexpr TensorOptions kDouble{.dtype = DType::float64};

}  // namespace

TEST_CASE("wrong calls: losses of two tensors of one shape") {
  const Tensor x = zeros({2, 3}), other = zeros({3, 2}), row = zeros({3}), none;
  const std::pair<std::string, std::function<Tensor(const Tensor&, const Tensor&)>> losses[] = {
      {"mse_loss", [](const Tensor& a, const Tensor& b) { return mse_loss(a, b); }},
      {"l1_loss", [](const Tensor& a, const Tensor& b) { return l1_loss(a, b); }},
      {"huber_loss", [](const Tensor& a, const Tensor& b) { return huber_loss(a, b); }},
      {"smooth_l1_loss", [](const Tensor& a, const Tensor& b) { return smooth_l1_loss(a, b); }},
      {"kl_div", [](const Tensor& a, const Tensor& b) { return kl_div(a, b); }},
      {"binary_cross_entropy_with_logits",
       [](const Tensor& a, const Tensor& b) { return binary_cross_entropy_with_logits(a, b); }},
  };
  for (const auto& [name, loss] : losses) {
    const auto error = [&, &f = loss](const Tensor& a, const Tensor& b) {
      return thrown_by([&] { f(a, b); });
    };
    CHECK(error(none, x) == "ValueError: " + name + ": expected a tensor, got an undefined tensor");
    CHECK(error(x, none) == "ValueError: " + name + ": expected a tensor, got an undefined tensor");
    CHECK(error(x, other) ==
          "ShapeError: " + name + ": expected tensors of one shape, got [2, 3] and [3, 2]");
    CHECK(error(row, x) ==
          "ShapeError: " + name + ": expected tensors of one shape, got [3] and [2, 3]");
    CHECK(error(x, zeros({2, 3}, kDouble)) ==
          "DTypeError: " + name + ": expected tensors of one dtype, got float32 and float64");
    CHECK(error(x, zeros({2, 3}, kInts)) ==
          "DTypeError: " + name + ": expected tensors of one dtype, got float32 and int64");
    CHECK(error(zeros({2, 3}, kInts), zeros({2, 3}, kInts)) ==
          "DTypeError: " + name + ": expected a floating dtype, got int64");
  }
}

// clang-format off
TEST_CASE("wrong calls: options of losses") {
  const Tensor x = zeros({2, 3}), y = zeros({2, 3});
  constexpr double infinity = std::numeric_limits<double>::infinity();
  expect_errors({
      {"ValueError: huber_loss: expected a positive, finite delta, got 0",
       [&] { huber_loss(x, y, {.delta = 0}); }},
      {"ValueError: huber_loss: expected a positive, finite delta, got -1",
       [&] { huber_loss(x, y, {.delta = -1}); }},
      {"ValueError: huber_loss: expected a positive, finite delta, got inf",
       [&] { huber_loss(x, y, {.delta = infinity}); }},
      {"ValueError: smooth_l1_loss: expected beta of at least 0, got -1",
       [&] { smooth_l1_loss(x, y, {.beta = -1}); }},
      {"ValueError: smooth_l1_loss: expected a finite beta, got inf",
       [&] { smooth_l1_loss(x, y, {.beta = infinity}); }},
      {"ValueError: huber_loss: expected a positive, finite delta, got nan",
       [&] { huber_loss(x, y, {.delta = std::numeric_limits<double>::quiet_NaN()}); }},
      {"ShapeError: binary_cross_entropy_with_logits: expected a pos_weight that broadcasts to [2, 3], "
       "got [4, 2, 3]",
       [&] { binary_cross_entropy_with_logits(x, y, {.pos_weight = ones({4, 2, 3})}); }},
      {"ShapeError: binary_cross_entropy_with_logits: expected shapes that broadcast together, got [2, 3] and [2]",
       [&] { binary_cross_entropy_with_logits(x, y, {.pos_weight = ones({2})}); }},
      {"DTypeError: binary_cross_entropy_with_logits: expected tensors of one dtype, got float32 and float64",
       [&] { binary_cross_entropy_with_logits(x, y, {.pos_weight = ones({3}, kDouble)}); }},
  });
}

TEST_CASE("wrong calls: losses over classes") {
  const Tensor x = zeros({2, 3}), batch = zeros({2, 4, 3}), targets = zeros({2}, kInts);
  const Tensor high = tensor({0, 3}), low = tensor({-1, 0}), none;
  expect_errors({
      {"ValueError: nll_loss: expected a tensor, got an undefined tensor", [&] { nll_loss(none, targets); }},
      {"ValueError: nll_loss: expected targets, got an undefined tensor", [&] { nll_loss(x, none); }},
      {"DTypeError: nll_loss: expected a floating dtype, got int64", [&] { nll_loss(zeros({2, 3}, kInts), targets); }},
      {"DTypeError: nll_loss: expected targets of int64, got float32", [&] { nll_loss(x, zeros({2})); }},
      {"DTypeError: nll_loss: expected targets of int64, got int32",
       [&] { nll_loss(x, zeros({2}, {.dtype = DType::int32})); }},
      {"ShapeError: nll_loss: expected logits [N, C] or [..., C], got [3]", [&] { nll_loss(zeros({3}), zeros({}, kInts)); }},
      {"ShapeError: nll_loss: expected targets [2], got [3]", [&] { nll_loss(x, zeros({3}, kInts)); }},
      {"ShapeError: nll_loss: expected targets [2], got [2, 1]", [&] { nll_loss(x, zeros({2, 1}, kInts)); }},
      {"ShapeError: nll_loss: expected targets [2, 4], or class_axis = 1 for logits [N, C, T], got [2, 3]",
       [&] { nll_loss(batch, zeros({2, 3}, kInts)); }},
      {"IndexError: nll_loss: expected an axis in [-2, 2) for rank 2, got 2", [&] { nll_loss(x, targets, {.class_axis = 2}); }},
      {"ShapeError: nll_loss: expected targets [3], got [2]", [&] { nll_loss(x, targets, {.class_axis = 0}); }},
      {"IndexError: nll_loss: expected indices in [0, 3) or -100, got 3 at [1]", [&] { nll_loss(x, high); }},
      {"IndexError: nll_loss: expected indices in [0, 3) or -100, got -1 at [0]", [&] { nll_loss(x, low); }},
      {"IndexError: nll_loss: expected indices in [0, 3) or 5, got -1 at [0]",
       [&] { nll_loss(x, low, {.ignore_index = 5}); }},
      {"ShapeError: nll_loss: expected a weight [3], got [2]", [&] { nll_loss(x, targets, {.weight = ones({2})}); }},
      {"ShapeError: nll_loss: expected a weight [3], got [3, 1]", [&] { nll_loss(x, targets, {.weight = ones({3, 1})}); }},
      {"ShapeError: nll_loss: expected a weight [3], got []", [&] { nll_loss(x, targets, {.weight = ones({})}); }},
      {"DTypeError: nll_loss: expected a floating dtype, got int64", [&] { nll_loss(x, targets, {.weight = ones({3}, kInts)}); }},
      {"ValueError: cross_entropy: expected a tensor, got an undefined tensor", [&] { cross_entropy(none, targets); }},
      {"ValueError: cross_entropy: expected targets, got an undefined tensor", [&] { cross_entropy(x, none); }},
      {"DTypeError: cross_entropy: expected a floating dtype, got bool",
       [&] { cross_entropy(zeros({2, 3}, {.dtype = DType::boolean}), targets); }},
      {"DTypeError: cross_entropy: expected targets of int64, got uint8",
       [&] { cross_entropy(x, zeros({2}, {.dtype = DType::uint8})); }},
      {"ShapeError: cross_entropy: expected targets [2, 4, 5], or class_axis = 1 for logits [N, C, ...], got [2, 5, 3]",
       [&] { cross_entropy(zeros({2, 4, 5, 3}), zeros({2, 5, 3}, kInts)); }},
      {"ShapeError: cross_entropy: expected probabilities [2, 4, 3], or targets of int64 [2, 3], got [2, 4] of float32",
       [&] { cross_entropy(batch, zeros({2, 4}), {.class_axis = 1}); }},
      {"ValueError: cross_entropy: expected no ignore_index for targets that are probabilities, got 1",
       [&] { cross_entropy(x, x, {.ignore_index = 1}); }},
      {"ShapeError: cross_entropy: expected a weight [3], got [2]",
       [&] { cross_entropy(x, x, {.weight = ones({2})}); }},
      {"ShapeError: cross_entropy: expected targets [2], got []", [&] { cross_entropy(x, zeros({}, kInts)); }},
      {"IndexError: cross_entropy: expected an axis in [-2, 2) for rank 2, got -3", [&] { cross_entropy(x, targets, {.class_axis = -3}); }},
      {"ShapeError: cross_entropy: expected targets [2, 3], got [2, 4]",
       [&] { cross_entropy(batch, zeros({2, 4}, kInts), {.class_axis = 1}); }},
      {"ShapeError: cross_entropy: expected a weight [3], got [4]", [&] { cross_entropy(x, targets, {.weight = ones({4})}); }},
      {"ShapeError: cross_entropy: expected a weight [4], got [3]",
       [&] { cross_entropy(batch, zeros({2, 3}, kInts), {.class_axis = 1, .weight = ones({3})}); }},
      {"DTypeError: cross_entropy: expected a floating dtype, got bool",
       [&] { cross_entropy(x, targets, {.weight = ones({3}, {.dtype = DType::boolean})}); }},
      {"ValueError: cross_entropy: expected label smoothing in [0, 1], got 1.5",
       [&] { cross_entropy(x, targets, {.label_smoothing = 1.5}); }},
      {"ValueError: cross_entropy: expected label smoothing in [0, 1], got -0.1",
       [&] { cross_entropy(x, targets, {.label_smoothing = -0.1, .weight = ones({3})}); }},
      {"IndexError: cross_entropy: expected indices in [0, 3) or -100, got 3 at [1]",
       [&] { cross_entropy(x, high, {.weight = ones({3})}); }},
      {"IndexError: cross_entropy: expected indices in [0, 3) or 1, got -1 at [0]",
       [&] { cross_entropy(x, low, {.ignore_index = 1}); }},
  });
}
// clang-format on

TEST_CASE("losses: no gradient flows to weights, and NaN reaches the result") {
  const Tensor x = ones({2, 3}, {.requires_grad = true}), targets = tensor({0, 2});
  const Tensor weight = ones({3}, {.requires_grad = true});
  cross_entropy(x, targets, {.label_smoothing = 0.1, .weight = weight}).backward();
  nll_loss(x, targets, {.weight = weight}).backward();
  binary_cross_entropy_with_logits(x, ones({2, 3}), {.pos_weight = weight}).backward();
  CHECK_FALSE(weight.grad().defined());
  CHECK(x.grad().defined());
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Tensor bad = full({2, 3}, nan);
  for (const Tensor& loss :
       {l1_loss(bad, x.detach()), huber_loss(bad, x.detach()), kl_div(bad, x.detach()),
        kl_div(x.detach(), bad), binary_cross_entropy_with_logits(bad, x.detach()),
        nll_loss(bad, targets), cross_entropy(bad, targets, {.weight = ones({3})})}) {
    CHECK_FALSE(loss.item<double>() == loss.item<double>());
  }
}

TEST_CASE("losses: large logits, exact zeros") {
  const Tensor x = tensor({-1e4, -50.0, 0.0, 50.0, 1e4}, {.dtype = DType::float64});
  Tensor logits = x.clone().requires_grad_();
  const Tensor loss =
      binary_cross_entropy_with_logits(logits, zeros({5}, kDouble), {.reduction = Reduction::sum});
  CHECK(loss.item<double>() == doctest::Approx(10050 + std::log(2.0)));
  loss.backward();
  CHECK(logits.grad()[2].item<double>() == 0.5);
  CHECK(logits.grad()[4].item<double>() == 1);
  // A probability of 0 adds nothing, whatever its logarithm's place holds.
  Tensor target = tensor({0.0, 1.0}, {.dtype = DType::float64}).requires_grad_();
  const Tensor divergence = kl_div(tensor({-3.0, -0.5}, {.dtype = DType::float64}), target,
                                   {.reduction = Reduction::sum});
  CHECK(divergence.item<double>() == 0.5);
  divergence.backward();
  CHECK(target.grad()[0].item<double>() == 3);
  CHECK(target.grad()[1].item<double>() == 1.5);
  // Ignored rows may hold anything.
  const Tensor rows = tensor({{-HUGE_VAL, -HUGE_VAL}, {-0.5, -1.0}}).requires_grad_();
  const Tensor one = nll_loss(rows, tensor({-100, 0}), {.weight = tensor({2.0, 1.0})});
  CHECK(one.item<double>() == 0.5);
  one.backward();
  CHECK(rows.grad().to_vector<float>() == std::vector<float>{0, 0, -1, 0});
}

TEST_CASE("binary_cross_entropy_with_logits: small losses of both signs keep their digits") {
  const Tensor x = tensor({2.0, 4.0, 6.0, 8.0, 10.0, 20.0}, kDouble), one = ones_like(x);
  for (const DType dtype : {DType::bfloat16, DType::float32}) {
    const double bound = dtype == DType::bfloat16 ? 0.01 : 1e-6;
    for (const double sign : {1.0, -1.0}) {
      for (const Tensor& weight : {Tensor(), one.to(dtype)}) {
        Tensor logits = (x * sign).to(dtype).requires_grad_();
        const Tensor loss =
            binary_cross_entropy_with_logits(logits, (sign > 0 ? one : 1 - one).to(dtype),
                                             {.pos_weight = weight, .reduction = Reduction::none});
        loss.sum().backward();
        for (int64_t i = 0; i < x.numel(); ++i) {
          const double e = std::exp(-x[i].item<double>());
          const double got = loss[i].to(DType::float64).item<double>();
          const double slope = -sign * logits.grad()[i].to(DType::float64).item<double>();
          CHECK(std::abs(got / std::log1p(e) - 1) < bound);
          CHECK(std::abs(slope / (e / (1 + e)) - 1) < bound);
        }
      }
    }
  }
}

TEST_CASE("kl_div: what neither can be adds nothing, and has no slope") {
  for (const bool log_target : {false, true}) {
    Tensor x = tensor({-HUGE_VAL, 0.0}, kDouble).requires_grad_();
    Tensor target = tensor({log_target ? -HUGE_VAL : 0.0, log_target ? 0.0 : 1.0}, kDouble);
    target.requires_grad_();
    const Tensor loss = kl_div(x, target, {.reduction = Reduction::none, .log_target = log_target});
    CHECK(loss.to_vector<double>() == std::vector<double>{0, 0});
    loss.sum().backward();
    CHECK(x.grad().to_vector<double>() == std::vector<double>{0, -1});
    CHECK(target.grad().to_vector<double>() == std::vector<double>{0, 1});
  }
  const Tensor none = tensor({-HUGE_VAL}), possible = tensor({-1.0});
  CHECK(kl_div(possible, none, {.log_target = true}).item<float>() == 0);
  CHECK(kl_div(none, tensor({0.5})).item<float>() == HUGE_VALF);
  CHECK(kl_div(none, possible, {.log_target = true}).item<float>() == HUGE_VALF);
}
