#include <doctest/doctest.h>

#include <thread>
#include <vector>

#include <sash/core/backend/backend.h>
#include <sash/core/object_pool.h>
#include <sash/ops/elementwise/binary.h>
#include <sash/ops/elementwise/gelu.h>
#include <sash/ops/elementwise/unary.h>
#include <sash/ops/linalg/linear.h>
#include <sash/ops/loss/mse_loss.h>
#include <sash/ops/norm/layer_norm.h>
#include <sash/ops/norm/softmax.h>
#include <sash/tensor/autograd/grad_mode.h>
#include <sash/tensor/factories.h>

#include "../support/devices.h"

using namespace sash;
using sash::testing::short_tests;

namespace {

struct Model {
  Tensor w1 = randn({16, 8}, {.requires_grad = true});
  Tensor b1 = zeros({16}, {.requires_grad = true});
  Tensor scale = ones({16}, {.requires_grad = true});
  Tensor w2 = randn({4, 16}, {.requires_grad = true});

  Tensor operator()(const Tensor& x) const {
    return linear(gelu(layer_norm(linear(x, w1, b1), {16}, scale)), w2);
  }
  std::vector<Tensor> parameters() const { return {w1, b1, scale, w2}; }
};

struct Usage {
  int64_t bytes = memory_stats(kCPU).current;
  int64_t system = memory_stats(kCPU).system_allocations;
  size_t objects = object_pool_system_allocations();
};

// Builds for sanitizers turn the object pool off.
bool has_object_pool() {
  deallocate_object(allocate_object(64), 64);
  const size_t before = object_pool_system_allocations();
  deallocate_object(allocate_object(64), 64);
  return object_pool_system_allocations() == before;
}

void check_same(const Usage& before, const Usage& after) {
  CHECK(after.bytes == before.bytes);
  if (!has_object_pool()) return;
  CHECK(after.system == before.system);
  CHECK(after.objects == before.objects);
}

}  // namespace

TEST_CASE("a chain of a million ops, forward, backward and destroyed") {
  const int length = short_tests() ? 100'000 : 1'000'000;
  const Tensor x = tensor<double>({2}, {.requires_grad = true});
  {
    Tensor y = x;
    for (int i = 0; i < length; ++i) y = -y;
    y.backward();
    CHECK(x.grad().item<double>() == 1);
  }
  {
    Tensor y = x;  // closures that own the chain too, destroyed without a backward pass
    for (int i = 0; i < length / 10; ++i) y = y * y;
    y = Tensor();
  }
}

TEST_CASE("evaluating without NoGradGuard does not grow memory") {
  const Model model;
  const Tensor x = randn({3, 8});
  const auto evaluate = [&] { return softmax(model(x)).sum().item<double>(); };
  for (int i = 0; i < 10; ++i) evaluate();
  const Usage before;
  double sum = 0;
  const int rounds = short_tests() ? 1'000 : 10'000;
  for (int i = 0; i < rounds; ++i) sum += evaluate();
  CHECK(sum == doctest::Approx(3 * rounds));
  check_same(before, Usage());
}

TEST_CASE("training steps allocate nothing from the system") {
  const Model model;
  const Tensor x = randn({3, 8}), target = randn({3, 4});
  const auto step = [&] {
    const Tensor loss = mse_loss(model(x), target);
    loss.backward();
    const NoGradGuard no_grad;
    for (Tensor p : model.parameters()) {
      p.add_(p.grad(), -0.01);
      p.zero_grad();
    }
    return loss;
  };
  const float first = step().item<float>();
  for (int i = 0; i < 20; ++i) step();
  const Usage before;
  for (int i = 0; i < (short_tests() ? 500 : 5'000); ++i) step();
  check_same(before, Usage());
  CHECK(step().item<float>() < first);
}

TEST_CASE("second derivatives and dropped graphs free all memory") {
  const Tensor x = randn({5, 3}, {.requires_grad = true});
  const auto work = [&] {
    const Tensor y = tanh(x) * x;
    const Tensor first = grad({y}, {x}, {ones_like(y)}, {.create_graph = true})[0];
    return grad({first}, {x}, {ones_like(first)})[0];
  };
  work();
  const Usage before;
  for (int i = 0; i < 100; ++i) work();
  check_same(before, Usage());
}

TEST_CASE("threads accumulate into one leaf") {
  constexpr int kThreads = 4, kPasses = 500;
  const Tensor x = tensor<double>({1, 2, 3}, {.requires_grad = true});
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&x] {
      for (int i = 0; i < kPasses; ++i) (x * 2.0).backward(ones_like(x));
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(x.grad().to_vector<double>() == std::vector<double>(3, 2.0 * kThreads * kPasses));
}

TEST_CASE("grad mode belongs to the thread") {
  const NoGradGuard no_grad;
  bool elsewhere = false;
  std::thread([&] { elsewhere = grad_enabled(); }).join();
  CHECK(elsewhere);
  CHECK_FALSE(grad_enabled());
}
