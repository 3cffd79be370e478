// Autocast: which ops cast to what, gradients, the casts that are kept, and where it does not
// reach.
#include <doctest/doctest.h>

#include <map>

#include <sash/core/error.h>
#include <sash/nn/models/causal_lm.h>
#include <sash/ops/autocast.h>
#include <sash/sash.h>
#include <sash/tensor/kernels/memory.h>

#include "../support/compare.h"
#include "../support/devices.h"
#include "../support/expect_error.h"
#include "../support/small_models.h"

using namespace sash;
using namespace sash::testing;

namespace {

constexpr DType kHalves[] = {DType::float16, DType::bfloat16};

Tensor variable(const Shape& shape, Device device) {
  return randn(shape, {.device = device}).requires_grad_();
}

uint64_t copies() { return kernels::copy.calls(DeviceType::cpu); }

}  // namespace

TEST_CASE_TEMPLATE("autocast: products in the half, losses and norms in float32", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  manual_seed(1);
  const Tensor x = variable({2, 8, 16}, On::device), w = variable({16, 16}, On::device);
  const Tensor b = variable({16}, On::device);
  const Tensor heads = variable({1, 2, 8, 16}, On::device);
  const Tensor target = zeros({2, 8}, {.dtype = DType::int64, .device = On::device});
  for (const DType half : kHalves) {
    const AutocastGuard autocast(half);
    const Tensor y = linear(x, w, b);
    CHECK(y.dtype() == half);
    CHECK(matmul(x, w).dtype() == half);
    CHECK(baddbmm(x, x, w.expand({2, 16, 16})).dtype() == half);
    CHECK(bmm(x, x.mT()).dtype() == half);
    CHECK(conv1d(x, ones({4, 8, 3}, {.device = On::device})).dtype() == half);
    CHECK(attention(heads, heads, heads).dtype() == half);
    CHECK(linear_attention(heads, heads, heads).dtype() == half);
    CHECK(einsum("bij,jk->bik", {x, w}).dtype() == half);
    // Operands of two dtypes, as a softmax between two products gives them.
    const Tensor local = softmax(local_dot_product(y.unsqueeze(1), x.unsqueeze(1), 3));
    CHECK(local.dtype() == DType::float32);
    CHECK(local_weighted_average(local, y.unsqueeze(1)).dtype() == half);
    const Tensor index = zeros({1, 2, 8, 3}, {.dtype = DType::int64, .device = On::device});
    const Tensor weights = softmax(sparse_dot_product(heads.to(half), heads, index));
    CHECK(weights.dtype() == DType::float32);
    CHECK(sparse_weighted_average(weights, heads.to(half), index).dtype() == half);
    const BlockPattern pattern = BlockPattern::full(16, 16, 16);
    CHECK(sampled_matmul(y.view({16, 16}), x.view({16, 16}), pattern).data().dtype() == half);
    CHECK(softmax(y).dtype() == DType::float32);
    CHECK(log_softmax(y).dtype() == DType::float32);
    CHECK(layer_norm(y, {16}, b, b).dtype() == DType::float32);
    CHECK(
        batch_norm(y, {}, {}, ones({8}, {.device = On::device}), {}, {.training = true}).dtype() ==
        DType::float32);
    CHECK(dropout_add_layer_norm(y, x, b, b, 0).norm.dtype() == DType::float32);
    CHECK(cross_entropy(y, target).dtype() == DType::float32);
    CHECK(mse_loss(y, x).dtype() == DType::float32);
    CHECK(binary_cross_entropy_with_logits(y, y, {.pos_weight = y}).dtype() == DType::float32);
    CHECK(gelu(y).dtype() == half);
    CHECK((x + y).dtype() == DType::float32);
    const Tensor wide = ones({3, 3}, {.dtype = DType::float64, .device = On::device});
    CHECK(matmul(wide, wide).dtype() == DType::float64);
    const NoAutocastGuard plain;
    CHECK(linear(x, w).dtype() == DType::float32);
  }
  CHECK(linear(x, w).dtype() == DType::float32);
}

TEST_CASE_TEMPLATE("autocast: results and gradients are those of casts by hand", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  manual_seed(2);
  for (const DType half : kHalves) {
    const Tensor x = variable({5, 16}, On::device), w = variable({16, 16}, On::device);
    const Tensor g = randn({5, 16}, {.device = On::device}).to(half);
    Tensor y;
    {
      const AutocastGuard autocast(half);
      y = linear(gelu(linear(x, w)), w);
    }
    const Tensor cast = w.to(half);
    const Tensor expected = linear(gelu(linear(x.to(half), cast)), cast);
    CHECK(all_same(y, expected));
    const std::vector<Tensor> found = grad({y}, {x, w}, {g});
    const std::vector<Tensor> wanted = grad({expected}, {x, w}, {g});
    for (size_t i = 0; i < 2; ++i) {
      CHECK(found[i].dtype() == DType::float32);
      CHECK(all_same(found[i], wanted[i]));
    }
  }
}

TEST_CASE("autocast: a weight is cast once, until it is written to") {
  manual_seed(3);
  Tensor w = variable({4, 4}, kCPU);
  const Tensor x = randn({3, 4}).to(DType::bfloat16);
  const AutocastGuard autocast(DType::bfloat16);
  const auto casts_of = [&](int calls) {
    const uint64_t before = copies();
    for (int i = 0; i < calls; ++i) matmul(x, w);
    return copies() - before;
  };
  const uint64_t one = casts_of(1), none = casts_of(1);
  CHECK(one > none);
  CHECK(casts_of(5) == 5 * none);
  Tensor old = matmul(x, w);
  {
    const NoGradGuard no_grad;
    w.mul_(2);
    CHECK_FALSE(matmul(x, w).requires_grad());  // and its cast is not kept for what follows
  }
  const Tensor fresh = matmul(x, w);
  CHECK(fresh.requires_grad());
  CHECK(all_same(fresh, (old * 2)));
}

TEST_CASE("autocast: a weight that moved is cast again") {
  nn::Linear layer(1, 1, {.bias = false});
  const Tensor x = ones({1, 1});
  const AutocastGuard autocast(DType::bfloat16);
  layer.weight.detach().fill_(1);
  layer(x);
  layer.to(DType::float64);
  layer.weight.detach().fill_(7);
  layer.to(DType::float32);
  CHECK(layer(x).item<float>() == 7);
}

TEST_CASE("autocast: forward and backward several times in one guard") {
  manual_seed(4);
  Tensor w = variable({4, 4}, kCPU), v = w.detach().clone().requires_grad_();
  const Tensor x = randn({3, 4});
  const AutocastGuard autocast(DType::bfloat16);
  for (int i = 0; i < 3; ++i) matmul(matmul(x, w), w).sum().backward();
  for (int i = 0; i < 3; ++i) {
    const AutocastGuard inner(DType::bfloat16);
    matmul(matmul(x, v), v).sum().backward();
  }
  CHECK(all_same(w.grad(), v.grad()));
  CHECK(w.grad().dtype() == DType::float32);
  // The backward pass of a plain product is plain.
  Tensor y, a = variable({4, 4}, kCPU);
  {
    const NoAutocastGuard plain;
    y = matmul(x, a);
  }
  y.sum().backward();
  CHECK(all_same(a.grad(), [&] {
    const NoAutocastGuard plain;
    return matmul(x.mT(), ones({3, 4}));
  }()));
}

TEST_CASE("autocast: checkpoint repeats it") {
  manual_seed(5);
  const Tensor x = variable({3, 4}, kCPU), w = variable({4, 4}, kCPU);
  const auto run = [&](bool recompute) {
    const AutocastGuard autocast(DType::bfloat16);
    const auto f = [&](const Tensor& in) { return gelu(matmul(in, w)); };
    const Tensor before = matmul(x, w);  // keeps a cast of w
    const Tensor y = recompute ? checkpoint(f, before) : f(before);
    CHECK(y.dtype() == DType::bfloat16);
    return y.sum();
  };
  const std::vector<Tensor> expected = grad({run(false)}, {x, w});
  const std::vector<Tensor> found = grad({run(true)}, {x, w});
  // The weight's two gradients are added in float32 in one case, in bfloat16 in the other.
  CHECK(largest_difference(found[0], expected[0]) == 0);
  CHECK(largest_difference(found[1], expected[1]) < 0.05);
}

TEST_CASE("autocast: a language model trains as in float32") {
  const Tensor tokens = [] {
    manual_seed(6);
    return randint(0, 11, {4, 16});
  }();
  std::map<bool, double> losses;
  for (const bool halves : {false, true}) {
    manual_seed(7);
    nn::CausalLM model = small_lm({.dim = 16});
    optim::AdamW adamw(model.parameters(), {.lr = 1e-2});
    for (int step = 0; step < 20; ++step) {
      adamw.zero_grad();
      Tensor loss;
      if (halves) {
        const AutocastGuard autocast(DType::bfloat16);
        loss = cross_entropy(model(tokens), tokens);
      } else {
        loss = cross_entropy(model(tokens), tokens);
      }
      loss.backward();
      adamw.step();
      losses[halves] = loss.item<double>();
    }
    for (const Tensor& p : model.parameters()) CHECK(p.grad().dtype() == DType::float32);
  }
  CHECK(losses[false] < 1);
  CHECK(losses[true] == doctest::Approx(losses[false]).epsilon(0.05));
}

TEST_CASE("wrong calls: AutocastGuard") {
  expect_error<DTypeError>("AutocastGuard: expected float16 or bfloat16, got float32",
                           [] { const AutocastGuard guard(DType::float32); });
  CHECK(linear(ones({1, 2}), ones({2, 2})).dtype() == DType::float32);
}
