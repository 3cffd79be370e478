// The backward pass writes into gradients that nothing else can see: it adds to them, and ops write
// their own gradient over them. Nobody may notice.
#include <doctest/doctest.h>

#include <sash/core/backend/backend.h>
#include <sash/ops/elementwise/binary.h>
#include <sash/ops/elementwise/dropout.h>
#include <sash/ops/elementwise/gelu.h>
#include <sash/ops/elementwise/unary.h>
#include <sash/ops/reduce/reduce.h>
#include <sash/tensor/autograd/grad_mode.h>
#include <sash/tensor/autograd/node.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>

using namespace sash;

namespace {

constexpr PhiloxState kState{.seed = 5};

std::vector<float> values(const Tensor& x) { return x.to_vector<float>(); }

double distance(const Tensor& a, const Tensor& b) {
  const NoGradGuard no_grad;
  return amax(abs(a - b)).item<double>();
}

// x, as an op whose gradient is `gradient`, whatever arrives.
Tensor with_gradient(const Tensor& x, const Tensor& gradient) {
  return record("with_gradient", {x}, x.detach(),
                [gradient](Backward&, const Tensor&) { return Gradients{gradient}; });
}

// The gradient of `f` at `at` for the cotangent `g`, of a pass that records itself and therefore
// writes over nothing.
Tensor expected(const std::function<Tensor(const Tensor&)>& f, const Tensor& at, const Tensor& g) {
  const Tensor x = at.clone().requires_grad_();
  return grad({f(x)}, {x}, {g}, {.create_graph = true})[0].detach();
}

}  // namespace

TEST_CASE("gradient memory: every order of sharing gives the gradient of a recorded pass") {
  manual_seed(3);
  const Tensor at = randn({4, 33}), g = randn({4, 33});
  const std::vector<std::function<Tensor(const Tensor&)>> functions{
      [](const Tensor& x) { return dropout_with(dropout_with(x, 0.3, kState), 0.5, kState); },
      [](const Tensor& x) { return gelu(dropout_with(x * 2.0, 0.3, kState)); },
      [](const Tensor& x) { return x + dropout_with(x, 0.3, kState); },
      [](const Tensor& x) { return dropout_with(x, 0.3, kState) + x; },
      [](const Tensor& x) { return x + x + gelu(x) + x; },
      [](const Tensor& x) {
        const Tensor y = x * x;
        return gelu(y) + dropout_with(y, 0.3, kState) + y + y;
      },
      [](const Tensor& x) {
        const Tensor y = exp(x);
        const Tensor z = y + y.mT().contiguous().mT();
        return dropout_with(z, 0.3, kState) * z;
      }};
  for (size_t i = 0; i < functions.size(); ++i) {
    CAPTURE(i);
    const Tensor x = at.clone().requires_grad_();
    const Tensor want = expected(functions[i], at, g);
    functions[i](x).backward(g);
    CHECK(distance(x.grad(), want) < 1e-5);
    const Tensor y = functions[i](x);
    y.backward(g, {.retain_graph = true});
    y.backward(g);
    CHECK(distance(x.grad(), want * 3.0) < 1e-5);
  }
}

TEST_CASE("gradient memory: what others hold keeps its elements") {
  manual_seed(4);
  Tensor x = randn({40}, {.requires_grad = true});
  const Tensor g = randn({40});
  const std::vector<float> before = values(g);

  SUBCASE("the gradient given to backward") {
    dropout_with(gelu(x), 0.5, kState).backward(g);
    gelu(dropout_with(x, 0.5, kState)).backward(g);
    CHECK(values(g) == before);
  }
  SUBCASE("a gradient that a hook keeps") {
    Tensor kept;
    const Tensor y = dropout_with(x, 0.5, kState);
    Tensor z = gelu(y);
    z.register_hook([&](const Tensor& seen) { return kept = seen; });
    (z * 1.0).backward(g);
    CHECK(values(kept) == before);
  }
  SUBCASE("a retained gradient") {
    Tensor z = dropout_with(x, 0.5, kState);
    z.retain_grad();
    (z * 1.0).backward(g);
    CHECK(values(z.grad()) == before);
    CHECK(values(z.grad()) != values(x.grad()));
  }
  SUBCASE("a gradient that `grad` returns") {
    const Tensor z = dropout_with(x, 0.5, kState);
    const auto found = grad({z * 1.0}, {z, x}, {g});
    CHECK(values(found[0]) == before);
  }
  SUBCASE("a tensor that the op returns as its gradient and keeps") {
    const Tensor y = with_gradient(dropout_with(x, 0.5, kState), g);
    const Tensor z = with_gradient(x, g);
    (y + z).backward(ones({40}), {.retain_graph = true});
    CHECK(values(g) == before);
    (y + z).backward(ones({40}));
    CHECK(values(g) == before);
  }
  SUBCASE("memory of the user's, as a gradient") {
    std::vector<float> memory = before;
    const auto blob = [&] { return from_blob(memory.data(), {40}, DType::float32, kCPU, {}); };
    const Tensor y = record("blob", {x}, x.detach(),
                            [&](Backward&, const Tensor&) { return Gradients{blob()}; });
    (y + gelu(x)).backward(ones({40}));
    const Tensor z = dropout_with(x, 0.5, kState);
    const Tensor w = record("blob", {z}, z.detach(),
                            [&](Backward&, const Tensor&) { return Gradients{blob()}; });
    w.backward(ones({40}));
    CHECK(memory == before);
  }
}

TEST_CASE("gradient memory: chains and sums need no more than what they return") {
  constexpr int64_t kCount = 1 << 18, kBytes = 4 * kCount;
  Tensor x = ones({kCount}, {.requires_grad = true});
  const Tensor g = ones({kCount});
  const auto peak_of_backward = [&](const Tensor& y) {
    x.zero_grad();
    reset_peak_memory(kCPU);
    const int64_t before = memory_stats(kCPU).current;
    y.backward(g);
    return memory_stats(kCPU).peak - before;
  };
  Tensor y = x;
  for (int i = 0; i < 5; ++i) y = dropout_with(y, 0.1, kState);
  CHECK(peak_of_backward(y) < kBytes + kBytes / 4);
  y = dropout_with(x, 0.1, kState);
  for (int i = 0; i < 4; ++i) y = y + dropout_with(x, 0.1, kState);
  // The sum, and the next term.
  CHECK(peak_of_backward(y) < 2 * kBytes + kBytes / 4);
}
