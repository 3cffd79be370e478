// Gradients reach the right tensors; where they cannot, an error says so.
#include <doctest/doctest.h>

#include <string>
#include <thread>
#include <vector>

#include <sash/core/backend/backend.h>
#include <sash/ops/attention/exact/attention.h>
#include <sash/ops/elementwise/binary.h>
#include <sash/ops/elementwise/unary.h>
#include <sash/ops/linalg/linear.h>
#include <sash/ops/norm/layer_norm.h>
#include <sash/ops/reduce/reduce.h>
#include <sash/tensor/autograd/anomaly.h>
#include <sash/tensor/autograd/grad_mode.h>
#include <sash/tensor/autograd/gradcheck.h>
#include <sash/tensor/autograd/node.h>
#include <sash/tensor/autograd/recompute.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>

#include "../support/expect_error.h"
#include "../support/random_numbers.h"

using namespace sash;
using sash::testing::expect_error;

namespace {

using Values = std::vector<double>;

Tensor constant(const Values& values) { return tensor(values, {int64_t(values.size())}); }
Tensor variable(const Values& values) { return constant(values).requires_grad_(); }
Values values(const Tensor& x) { return x.to_vector<double>(); }

Tensor random_variable(const Shape& shape, uint64_t seed) {
  sash::testing::RandomNumbers random(seed);
  Values drawn;
  for (int64_t i = 0; i < numel(shape); ++i) drawn.push_back(random.uniform() - 0.5);
  return tensor(drawn, shape).requires_grad_();
}

void check_second_derivatives(const std::function<Tensor(const std::vector<Tensor>&)>& fn,
                              const std::vector<Tensor>& inputs) {
  const GradcheckReport report = gradgradcheck(fn, inputs);
  CHECK_MESSAGE(report.ok, report.message());
}

}  // namespace

// ---- retained gradients and hooks ---------------------------------------------------------------

TEST_CASE("a retained gradient follows its tensor through in-place writes and is freed with it") {
  const Tensor x = variable({1, 2});
  Tensor y = x * 3.0;
  y.retain_grad();
  y.mul_(5);
  const Tensor z = y * 7.0;
  z.backward(constant({1, 1}), {.retain_graph = true});
  CHECK(values(y.grad()) == Values{7, 7});
  CHECK(values(x.grad()) == Values{105, 105});

  // A new tensor in the memory of a destroyed one gets no gradient.
  y = Tensor();
  std::vector<Tensor> others;
  for (int i = 0; i < 50; ++i) others.push_back(zeros({2}));
  z.backward(constant({1, 1}));
  for (const Tensor& other : others) CHECK_FALSE(other.grad().defined());
}

TEST_CASE("a retained gradient is summed over passes, taken after hooks, and unchanged by grad()") {
  const Tensor x = variable({2});
  Tensor y = x * 3.0;
  y.retain_grad();
  y.register_hook([](const Tensor& g) { return g * 10.0; });
  const Tensor z = y * 4.0;
  CHECK(values(grad({z}, {x}, {}, {.retain_graph = true})[0]) == Values{120});
  CHECK_FALSE(y.grad().defined());
  z.backward({.retain_graph = true});
  z.backward();
  CHECK(values(y.grad()) == Values{80});
}

TEST_CASE("a tensor with retain_grad may be destroyed on another thread during backward passes") {
  const Tensor x = variable({2});
  for (int i = 0; i < 200; ++i) {
    Tensor y = x * 3.0;
    y.retain_grad();
    const Tensor z = y * 2.0;
    std::thread pass([&z] { z.backward(); });
    y = Tensor();
    pass.join();
  }
  CHECK(values(x.grad()) == Values{1200});
}

TEST_CASE("hooks of a leaf run on what grad() returns") {
  Tensor x = variable({2});
  x.register_hook([](const Tensor& g) { return g * 10.0; });
  CHECK(values(grad({x * 3.0}, {x})[0]) == Values{30});
  (x * 3.0).backward();
  CHECK(values(x.grad()) == Values{30});
}

TEST_CASE("what a hook returns is checked") {
  Tensor x = variable({1, 2});
  Tensor y = x * 2.0;
  y.register_hook([](const Tensor& g) { return g.sum(); });
  expect_error<AutogradError>(
      "register_hook: expected a gradient like the one it got, float64 [2] on cpu, got float64 [] "
      "on cpu",
      [&] {
        y.backward(constant({1, 1}));
      });
  x.register_hook([](const Tensor& g) { return g.to(DType::float32); });
  expect_error<AutogradError>(
      "register_hook: expected a gradient like the one it got, float64 [2] on cpu, got float32 [2] "
      "on cpu",
      [&] {
        (x * 2.0).backward(constant({1, 1}));
      });
  CHECK_FALSE(x.grad().defined());
}

TEST_CASE("a hook may register hooks and run passes") {
  Tensor x = variable({2});
  Tensor y = x * 2.0;
  int calls = 0;
  const auto hook_on = [&](Tensor& t) {
    t.register_hook([&](const Tensor& g) {
      ++calls;
      for (int i = 0; i < 20; ++i) t.register_hook([&](const Tensor&) { return Tensor(); });
      const Tensor inner = variable({3});
      const EnableGradGuard recording;
      (inner * inner).backward();
      return g + inner.grad();
    });
  };
  hook_on(y);
  hook_on(x);
  y.backward();
  CHECK(calls == 2);
  CHECK(values(x.grad()) == Values{(1 + 6) * 2 + 6});
}

TEST_CASE("hooks of a fused op's inputs run once in a recorded pass") {
  const Tensor x = random_variable({2, 3}, 1), weight = random_variable({3}, 2);
  const Tensor cotangent = constant({1, 2, 3, 4, 5, 6}).view({2, 3});
  const auto gradient = [&](double factor) {
    Tensor y = x * 1.0, w = weight * 1.0;
    for (Tensor* t : {&y, &w}) t->register_hook([=](const Tensor& g) { return g * factor; });
    return grad({layer_norm(y, {3}, w)}, {weight}, {cotangent}, {.create_graph = true})[0];
  };
  const Values once = values(gradient(1)), doubled = values(gradient(2));
  for (size_t i = 0; i < once.size(); ++i) CHECK(doubled[i] == doctest::Approx(2 * once[i]));
}

// ---- memory and graphs --------------------------------------------------------------------------

TEST_CASE("an in-place write with an operand that saved the tensor makes no reference cycle") {
  const Tensor w = variable({0.5, 0.5});
  const auto work = [&](bool through_view) {
    Tensor x = ones({2}, {.dtype = DType::float64});
    const Tensor v = x[0];
    const Tensor h = (through_view ? v : x) * w;
    x.add_(h);
    return x;
  };
  const int64_t before = memory_stats(kCPU).current;
  for (int i = 0; i < 100; ++i) {
    work(false);
    work(true);
  }
  CHECK(memory_stats(kCPU).current == before);
  expect_error<AutogradError>(
      "mul: a saved tensor (float64 [2]) was overwritten in place between the forward and the "
      "backward pass: expected version 0, got 1",
      [&] { work(false).sum().backward(); });
}

TEST_CASE("a leaf that recorded ops use cannot be written in a graph once it needs no gradient") {
  Tensor x = variable({1, 2});
  const Tensor h = x * 3.0;
  x.requires_grad_(false);
  x.add_(1);
  expect_error<AutogradError>(
      "add_: a tensor that was a leaf requiring grad cannot be written in a graph: recorded ops "
      "may name it as their leaf; write to a clone of it",
      [&] { x.add_(h); });
}

TEST_CASE("a failed backward pass leaves no memory and no gradients behind") {
  const Tensor x = variable({2});
  const int64_t before = memory_stats(kCPU).current;
  for (int i = 0; i < 20; ++i) {
    Tensor y = x * x;
    y.register_hook([i](const Tensor& g) -> Tensor {
      if (i % 2 == 0) throw ValueError("hook", "on purpose");
      return g.expand({3});
    });
    CHECK_THROWS_AS(((y + x) * (y * 2.0)).backward(), Error);
  }
  CHECK(memory_stats(kCPU).current == before);
  CHECK_FALSE(x.grad().defined());
  (x * x).backward();
  CHECK(values(x.grad()) == Values{4});
}

TEST_CASE("a gradient set from an expanded tensor can be accumulated into") {
  Tensor x = variable({1, 2, 3});
  x.set_grad(constant({1}).expand({3}));
  (x * x).backward(constant({1, 1, 1}));
  CHECK(values(x.grad()) == Values{3, 5, 7});
}

// ---- wrong calls of backward and record ---------------------------------------------------------

TEST_CASE("a second backward pass names the op whose saved tensors were freed") {
  const Tensor x = variable({1, 2});
  const Tensor y = (exp(x) * 2.0).sum();
  y.backward();
  expect_error<AutogradError>(
      "exp: what it saved was freed by an earlier backward pass; ask for retain_graph in that one",
      [&] { y.backward(); });
  const Tensor linear_in_x = (x * 2.0 + 1.0).sum();
  Tensor(x).zero_grad();
  linear_in_x.backward();
  linear_in_x.backward();
  CHECK(values(x.grad()) == Values{4, 4});
}

TEST_CASE("a custom op must return one gradient per input") {
  const Tensor x = variable({1, 2});
  const auto op = [&](size_t count) {
    return record("custom", {x}, (x * 2.0).detach(), [count](Backward&, const Tensor& g) {
      Gradients grads;
      for (size_t i = 0; i < count; ++i) grads.push_back(g);
      return grads;
    });
  };
  expect_error<AutogradError>(
      "custom: expected at most 1 gradients from its backward, one for each input, got 2", [&] {
        op(2).backward(constant({1, 1}));
      });
  expect_error<AutogradError>("custom: its backward gave no gradient for input 0", [&] {
    op(0).backward(constant({1, 1}));
  });
  const Tensor cast = record("cast", {x}, (x * 2.0).detach(), [](Backward&, const Tensor& g) {
    return Gradients{g.to(DType::float32)};
  });
  expect_error<AutogradError>(
      "cast: the gradient of input 0: expected float64 [2] on cpu, got float32 [2] on cpu", [&] {
        cast.backward(constant({1, 1}));
      });
  CHECK_FALSE(x.grad().defined());
}

TEST_CASE("record() refuses an output that has a history or is an input") {
  const Tensor x = variable({1, 2}), plain = constant({1, 2});
  const auto backward = [](Backward&, const Tensor& g) { return Gradients{g}; };
  const std::string message =
      "custom: expected an output without history (compute it under NoGradGuard, or detach() it), "
      "got an input, or the output of another recorded op";
  expect_error<AutogradError>(message, [&] { record("custom", {x}, x * 2.0, backward); });
  expect_error<AutogradError>(message, [&] { record("custom", {x}, x, backward); });
  expect_error<AutogradError>(message, [&] { record("custom", {x, plain}, plain, backward); });
  CHECK_FALSE(plain.requires_grad());
}

// ---- recomputation and composites ---------------------------------------------------------------

TEST_CASE("grad() through a checkpoint reaches captured tensors and accumulates nothing") {
  const Tensor x = random_variable({2, 3}, 1), w = random_variable({3, 3}, 2),
               b = random_variable({3}, 3), unused = variable({1});
  const Tensor h = b * b;  // captured with its history
  const auto fn = [&](const Tensor& a) { return tanh(linear(a, w) * h + b); };
  const Tensor cotangent = constant({1, 2, 3, 4, 5, 6}).view({2, 3});
  const std::vector<Tensor> wanted{w, b, h, x};
  const std::vector<Tensor> expected =
      grad({fn(x * 2.0)}, wanted, {cotangent}, {.retain_graph = true});
  const auto same = [](const Tensor& a, const Tensor& e) {
    const Values found = values(a), plain = values(e);
    REQUIRE(found.size() == plain.size());
    for (size_t i = 0; i < found.size(); ++i) CHECK(found[i] == doctest::Approx(plain[i]));
  };

  const Tensor y = checkpoint(fn, x * 2.0);
  const std::vector<Tensor> found = grad({y}, wanted, {cotangent}, {.retain_graph = true});
  for (size_t i = 0; i < wanted.size(); ++i) same(found[i], expected[i]);
  same(grad({y}, {w}, {cotangent}, {.retain_graph = true})[0], expected[0]);
  CHECK_FALSE(grad({y}, {unused}, {cotangent}, {.retain_graph = true}, true)[0].defined());
  for (const Tensor& t : {x, w, b, h}) CHECK_FALSE(t.grad().defined());

  y.backward(cotangent);
  same(w.grad(), expected[0]);
  same(b.grad(), expected[1]);
  same(x.grad(), expected[3]);
}

TEST_CASE("a checkpoint passes undefined inputs on") {
  const auto fn = [](const std::vector<Tensor>& in) {
    const Tensor y = linear(in[0], in[1], in[2]);
    return std::vector<Tensor>{tanh(in[3].defined() ? y * in[3] : y)};
  };
  const TensorOptions options{.dtype = DType::float64, .requires_grad = true};
  const Tensor x = random_variable({2, 3}, 1), w = random_variable({4, 3}, 2);
  const auto recomputed = [&](const std::vector<Tensor>& in) { return checkpoint(fn, in); };
  gradcheck(GradcheckFunction(recomputed), {x, w, Tensor(), ones({4}, options)}).or_throw();
  gradcheck(GradcheckFunction(recomputed), {x, w, ones({4}, options), Tensor()}).or_throw();
  gradcheck(GradcheckFunction(recomputed), {x, w, Tensor(), Tensor()}).or_throw();
  // A function of one tensor may ignore it.
  const Tensor y = checkpoint([&](const Tensor& a) { return a.defined() ? a : w * 2; }, Tensor());
  CHECK(values(grad({y}, {w}, {ones_like(y)})[0]) == Values(12, 2));
}

TEST_CASE("a checkpoint is recorded if only captured tensors require grad") {
  const Tensor w = variable({3});
  int runs = 0;
  const auto square = [&](const Tensor& a) {
    ++runs;
    return a * w * w;
  };
  const Tensor y =
      checkpoint([&](const Tensor& a) { return checkpoint(square, a) * w; }, constant({2}));
  y.backward();
  CHECK(values(w.grad()) == Values{2 * 3 * 9});
  CHECK(runs == 3);
  const NoGradGuard no_grad;
  CHECK_FALSE(checkpoint(square, constant({2})).requires_grad());
}

TEST_CASE("hooks of tensors that a checkpoint captures see the total gradient, once") {
  Tensor w = variable({3});
  Tensor h = w * 1.0;
  int calls = 0;
  for (Tensor* t : {&w, &h}) {
    t->register_hook([&calls](const Tensor& g) {
      ++calls;
      return g * 2.0;
    });
  }
  const auto product = [&](const Tensor& a) { return a * w * h; };
  const Tensor x = variable({1});
  (checkpoint(product, x) + checkpoint(product, x)).backward();
  CHECK(calls == 2);
  // d/dw = 2 h = 6, through h 2 w = 6, doubled by h's hook; w's hook doubles the sum.
  CHECK(values(w.grad()) == Values{2 * (6 + 2 * 6)});
}

TEST_CASE("a checkpoint whose second run would differ is an error") {
  Tensor w = variable({3});
  const Tensor other = variable({4}), x = variable({1});
  const Tensor y = checkpoint([&](const Tensor& a) { return a * w; }, x);
  {
    const NoGradGuard no_grad;
    w.add_(1);
  }
  expect_error<AutogradError>(
      "checkpoint: a saved tensor (float64 [1]) was overwritten in place between the forward and "
      "the backward pass: expected version 0, got 1",
      [&] { y.backward(); });

  bool second = false;
  const Tensor z = checkpoint([&](const Tensor& a) { return a * (second ? other : w); }, x);
  second = true;
  expect_error<AutogradError>(
      "checkpoint: expected a second run like the first, got one that uses another tensor that "
      "requires grad",
      [&] { z.backward(); });
  CHECK_FALSE(other.grad().defined());
}

TEST_CASE("a checkpoint draws the same again, whatever other threads draw") {
  const Tensor x = ones({100}).requires_grad_();
  const auto noise = [](const Tensor& a) {
    const Tensor once = a * rand({100});
    std::thread([] { rand({7}); }).join();
    return once * rand({100});
  };
  const Tensor y =
      checkpoint([&](const Tensor& a) { return checkpoint(noise, a) * rand({100}); }, x);
  const RandomState before = random_state();
  y.sum().backward();
  CHECK(sub(x.grad(), y).abs().amax().item<float>() < 1e-6f);
  // That of the other thread alone, in both second runs.
  CHECK(random_state().offset > before.offset);
  CHECK(random_state().offset <= before.offset + 6);

  int calls = 0;
  const Tensor z =
      checkpoint([&](const Tensor& a) { return ++calls == 1 ? a * 2.0 : a * rand({100}); }, x);
  expect_error<AutogradError>(
      "checkpoint: expected a second run like the first, got one that draws more random numbers",
      [&] { z.sum().backward(); });
  calls = 0;
  const Tensor fewer =
      checkpoint([&](const Tensor& a) { return ++calls == 1 ? a * rand({100}) : a * 2.0; }, x);
  expect_error<AutogradError>(
      "checkpoint: expected a second run like the first, got one that draws fewer random numbers",
      [&] { fewer.sum().backward(); });
}

TEST_CASE("a checkpoint whose function runs another's backward pass draws the same again") {
  const Tensor x = ones({100}).requires_grad_();
  const auto noise = [](const Tensor& a) { return a * rand({100}); };
  const Tensor y = checkpoint(
      [&](const Tensor& a) {
        Tensor inner = ones({100}).requires_grad_();
        checkpoint(noise, inner).sum().backward();
        return a * inner.grad() * rand({100});
      },
      x);
  y.sum().backward();
  CHECK(values(x.grad()) == values(y));
}

TEST_CASE("a checkpoint whose function writes to an input is an error") {
  const Tensor w = variable({1, 1});
  for (const bool trained : {false, true}) {
    const Tensor x = trained ? variable({0, 0}) : constant({0, 0});
    const Tensor y = checkpoint(
        [&](const Tensor& a) {
          const NoGradGuard no_grad;
          Tensor(a).add_(1);
          const EnableGradGuard recording;
          return a + w;
        },
        x);
    expect_error<AutogradError>(
        "checkpoint: a saved tensor (float64 [2]) was overwritten in place between the forward and "
        "the backward pass: expected version 0, got 1",
        [&] { y.sum().backward(); });
  }
}

TEST_CASE("results of a checkpoint share no memory with its inputs and captured tensors") {
  const Tensor x = variable({1, 2}), w = variable({3, 4}), plain = constant({5, 6});
  const std::vector<Tensor> y = checkpoint(
      [&](const std::vector<Tensor>& in) {
        return std::vector<Tensor>{in[0], in[0].view({2, 1}), w, plain, in[0] * w};
      },
      {x});
  for (Tensor out : y) out.mul_(7);
  CHECK(values(x) == Values{1, 2});
  CHECK(values(w) == Values{3, 4});
  CHECK(values(plain) == Values{5, 6});
  CHECK_FALSE(plain.requires_grad());
  backward({y[0], y[1], y[2], y[4]},
           {constant({1, 1}), constant({1, 1}).view({2, 1}), constant({1, 1}), constant({1, 1})});
  CHECK(values(x.grad()) == Values{7 + 7 + 21, 7 + 7 + 28});
  CHECK(values(w.grad()) == Values{7 + 7, 7 + 14});
}

TEST_CASE("second derivatives of a fused op that gets one tensor twice") {
  check_second_derivatives(
      [](const std::vector<Tensor>& in) { return layer_norm(in[0], {4}, in[0]); },
      {random_variable({4}, 1)});
  check_second_derivatives(
      [](const std::vector<Tensor>& in) { return attention(in[0], in[0], in[0]); },
      {random_variable({1, 2, 3, 2}, 2)});
}

TEST_CASE("anomaly mode with views, in-place writes and checkpoints") {
  const AnomalyGuard guard;
  const Tensor x = variable({1, 4});
  Tensor y = x * 2.0;
  const Tensor v = y[1];
  y[0].mul_(3);
  const Tensor z = checkpoint([](const Tensor& a) { return sqrt(a); }, v);
  (z + y.sum()).backward();
  CHECK(values(x.grad())[0] == 6);
  y[1].fill_(-1);
  CHECK_THROWS_WITH_AS(sqrt(v), doctest::Contains("sqrt: made the first NaN"), AutogradError);
}

TEST_CASE("threads with graphs of their own share leaves, kept gradients and views") {
  constexpr int kThreads = 4, kPasses = 100;
  Tensor x = variable({1, 2});
  x.register_hook([](const Tensor& g) { return g * 2.0; });
  Tensor y = x * 1.0;
  const Tensor v = y[0];
  y.mul_(3);  // the threads find v stale at once
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kPasses; ++i) {
        Tensor mine = v * 2.0;
        mine.retain_grad();
        mine.add_(1);
        mine.backward({.retain_graph = true});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(values(x.grad()) == Values{12.0 * kThreads * kPasses, 0});
}
