// Attention in float16 and bfloat16 where plain ops compute it: gradients with a graph of their
// own, weights, autocast. Sums are wide there as they are in kernels.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include <sash/sash.h>

#include "../support/attention/row_errors.h"
#include "../support/devices.h"
#include "../support/expect_error.h"

using namespace sash;
using namespace sash::testing;

namespace {

struct Operands {
  Tensor q, k, v, g;
};

// Scores up to about 60.
Operands large_scores(TensorOptions options) {
  manual_seed(11);
  const Shape shape{1, 2, 48, 128};
  return {randn(shape, options) * 4, randn(shape, options) * 4, randn(shape, options),
          randn(shape, options)};
}

std::vector<Tensor> gradients(const Operands& x, const AttentionOptions& options, bool graph) {
  const Tensor q = x.q.detach().requires_grad_(), k = x.k.detach().requires_grad_(),
               v = x.v.detach().requires_grad_();
  return grad({attention(q, k, v, options)}, {q, k, v}, {x.g}, {.create_graph = graph});
}

Operands wide(const Operands& x) {
  const auto to = [](const Tensor& t) { return t.to(DType::float32); };
  return {to(x.q), to(x.k), to(x.v), to(x.g)};
}

// Operands with large scores, the same in float32, and the rounding error of `dtype`.
struct Rounded {
  Operands x, exact;
  double unit;
};

Rounded rounded_operands(DType dtype, Device device) {
  const Operands x = large_scores({.dtype = dtype, .device = device});
  return {x, wide(x), dtype == DType::float16 ? 0x1p-11 : 0x1p-8};
}

}  // namespace

TEST_CASE_TEMPLATE("attention in halves: plain ops round once", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  for (const DType dtype : {DType::float16, DType::bfloat16}) {
    CAPTURE(name(dtype));
    const auto [x, exact, unit] = rounded_operands(dtype, On::device);
    AttentionOptions options{.mask = AttentionMask::causal()};
    options.alibi_slopes = nn::alibi_slopes(2, On::device);
    const std::vector<Tensor> found = gradients(x, options, true),
                              want = gradients(exact, options, false);
    for (size_t i = 0; i < want.size(); ++i) {
      check_rows(i == 0 ? "dq" : "dk", found[i].to(DType::float32), want[i], 4 * unit);
    }
    const Tensor weights = attention_probabilities(x.q, x.k, options);
    CHECK(weights.dtype() == dtype);
    CHECK(relative_error(weights.to(DType::float32),
                         attention_probabilities(exact.q, exact.k, options)) <= unit);
    // Products of 115,200, which float16 does not hold.
    const Tensor same =
        full({1, 1, 9, 128}, 30.0, {.dtype = dtype, .device = On::device, .requires_grad = true});
    const Tensor even = attention_probabilities(same.detach(), same.detach());
    CHECK(relative_error(even.to(DType::float32), full({1, 1, 9, 9}, 1.0 / 9)) <= unit);
    for (const double g :
         grad({attention(same, same, same).sum()}, {same}, {}, {.create_graph = true})[0]
             .template to_vector<double>()) {
      CHECK(g == doctest::Approx(1).epsilon(4 * unit));
    }
  }
}

TEST_CASE("attention in halves: autocast reaches weights and steps") {
  manual_seed(3);
  nn::MultiheadAttention m(16, 4, {.relative_positions = 3});
  const Tensor x = randn({2, 5, 16}), want = m.forward_with_weights(x, x, x).weights;
  const Tensor steep = ones({1, 1, 200, 64}) * 6, v = ones({1, 1, 200, 4});
  for (const DType dtype : {DType::float16, DType::bfloat16}) {
    const AutocastGuard guard(dtype);
    const Tensor weights = m.forward_with_weights(x, x, x).weights;
    CHECK(weights.dtype() == dtype);
    CHECK(relative_error(weights.to(DType::float32), want) <= 0.05);
    LinearAttentionState state;
    for (int step = 0; step < 2; ++step) {
      const Tensor y = linear_attention_step(steep, steep, v, state);
      CHECK(y.dtype() == dtype);
      CHECK(relative_error(y.to(DType::float32), v) <= 0.01);
      CHECK(state.s.dtype() == DType::float32);
    }
  }
}

TEST_CASE("attention: slopes that are overwritten before the backward pass") {
  const Tensor q = randn({1, 2, 4, 8}, {.requires_grad = true});
  Tensor slopes = full({2}, 0.5, {.dtype = DType::float32});
  const Tensor y = attention(q, q, q, {.alibi_slopes = slopes});
  slopes.fill_(0);
  CHECK_THROWS_AS(y.sum().backward(), AutogradError);
}

TEST_CASE_TEMPLATE("attention: sinks of -inf are none", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  const TensorOptions options{.dtype = DType::float32, .device = On::device};
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  manual_seed(5);
  const Tensor q = randn({1, 2, 4, 8}, options);
  for (const AttentionMask& mask : {AttentionMask::sinks(0), AttentionMask::causal()}) {
    Tensor sinks = full({2}, -kInfinity, options).requires_grad_();
    const AttentionWithLse plain = attention_with_lse(q, q, q, {.mask = mask}),
                           found =
                               attention_with_lse(q, q, q, {.mask = mask, .sink_logits = sinks});
    CHECK(all_same(found.out, plain.out));
    CHECK(all_same(found.lse.to(kCPU), plain.lse.to(kCPU)));
    (found.out.sum() + masked_fill(found.lse, eq(found.lse, kInfinity), 0).sum()).backward();
    CHECK(sinks.grad().template to_vector<double>() == std::vector<double>{0, 0});
  }
}

TEST_CASE_TEMPLATE("attention: sink logits do not round halves once more", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  for (const DType dtype : {DType::float16, DType::bfloat16}) {
    CAPTURE(name(dtype));
    const auto [x, exact, unit] = rounded_operands(dtype, On::device);
    AttentionOptions options{.mask = AttentionMask::causal()};
    options.sink_logits = tensor<float>({1, 12}).to(On::device);
    const Tensor want = attention(exact.q, exact.k, exact.v, options);
    // A card's kernels round weights and results before the sinks' share multiplies them.
    const auto error_of = [&](const Tensor& found) {
      const Tensor error = abs(found.detach().to(DType::float32) - want);
      if (On::device.is_cuda()) return relative_error(found.to(DType::float32), want) / 3;
      return amax(error / (abs(want) + 1e-3)).template item<double>();
    };
    for (const Tensor& found :
         {attention(x.q, x.k, x.v, options), attention_with_lse(x.q, x.k, x.v, options).out}) {
      CHECK(found.dtype() == dtype);
      CHECK(error_of(found) <= 1.02 * unit);
    }
    const AutocastGuard guard(dtype);
    CHECK(error_of(attention(exact.q, exact.k, exact.v, options)) <= 1.02 * unit);
  }
}

TEST_CASE("attention: scales, softcaps and eps that float32 does not hold") {
  const Tensor q = zeros({1, 1, 2, 4}, {.dtype = DType::float32}), wide = q.to(DType::float64);
  const std::string op = "ValueError: attention: expected ";
  expect_errors({
      {op + "a scale that float32 holds, got 1e+300",
       [&] { attention(q, q, q, {.scale = 1e300}); }},
      {op + "a softcap that float32 holds, got 1e+300",
       [&] { attention(q, q, q, {.softcap = 1e300}); }},
      {op + "a softcap that float32 holds, got 1e-50",
       [&] { attention(q, q, q, {.softcap = 1e-50}); }},
      {"ValueError: linear_attention: expected an eps that float32 holds, got 1e-50",
       [&] { linear_attention(q, q, q, {.eps = 1e-50}); }},
  });
  CHECK(attention(wide, wide, wide, {.scale = 1e300, .softcap = 1e-50}).shape() == q.shape());
}
