#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>

#include <sash/core/backend/backend.h>
#include <sash/ops/elementwise/binary.h>
#include <sash/ops/elementwise/unary.h>
#include <sash/ops/reduce/reduce.h>
#include <sash/tensor/autograd/anomaly.h>
#include <sash/tensor/autograd/grad_mode.h>
#include <sash/tensor/autograd/node.h>
#include <sash/tensor/factories.h>

using namespace sash;

namespace {

using Values = std::vector<double>;

Tensor constant(const Values& values) { return tensor(values, {int64_t(values.size())}); }
Tensor variable(const Values& values) { return constant(values).requires_grad_(); }
Values values(const Tensor& x) { return x.to_vector<double>(); }

// Doubles, and runs a backward pass inside its own.
Tensor nested(const Tensor& x) {
  return record("nested", {x}, (x * 2.0).detach(), [x = save(x)](Backward& pass, const Tensor& g) {
    const EnableGradGuard recording;
    Tensor inner = pass(x).detach().requires_grad_();
    (inner * 2.0).backward(g);
    return Gradients{inner.grad()};
  });
}

}  // namespace

TEST_CASE("gradients accumulate over paths and passes") {
  const Tensor x = variable({2, 3});
  const Tensor y = x * x + x;
  y.backward(constant({1, 10}), {.retain_graph = true});
  CHECK(values(x.grad()) == Values{5, 70});
  y.backward(constant({1, 10}));
  CHECK(values(x.grad()) == Values{10, 140});
  Tensor(x).zero_grad();
  CHECK_FALSE(x.grad().defined());
}

TEST_CASE("a leaf's gradient shares no memory with the cotangent") {
  const Tensor x = variable({1, 2}), g = constant({3, 4});
  (x + 0.0).backward(g);
  (x + 0.0).backward(g);
  CHECK(values(x.grad()) == Values{6, 8});
  CHECK(values(g) == Values{3, 4});
}

TEST_CASE("a second backward pass needs retain_graph") {
  const Tensor x = variable({2});
  const Tensor y = x * x;
  y.backward();
  CHECK_THROWS_WITH_AS(y.backward(),
                       "mul: what it saved was freed by an earlier backward pass; ask for "
                       "retain_graph in that one",
                       AutogradError);
  CHECK(values(x.grad()) == Values{4});
}

TEST_CASE("wrong calls: backward") {
  const Tensor x = variable({1, 2});
  CHECK_THROWS_WITH_AS((x * 2.0).backward(),
                       "backward: expected a one-element tensor, or a gradient for it, got shape "
                       "[2]",
                       AutogradError);
  CHECK_THROWS_WITH_AS(constant({1}).backward(),
                       "backward: expected a tensor that requires grad, got one without history",
                       AutogradError);
  CHECK_THROWS_WITH_AS((x * 2.0).backward(constant({1})),
                       "backward: expected a gradient of shape [2], got [1]", ShapeError);
  CHECK_FALSE(x.grad().defined());
}

TEST_CASE("double backward") {
  const Tensor x = variable({2, -3});
  const Tensor y = x * x * x;
  const Tensor first = grad({y}, {x}, {constant({1, 1})}, {.create_graph = true})[0];
  CHECK(values(first) == Values{12, 27});
  const Tensor second = grad({first}, {x}, {constant({1, 1})}, {.create_graph = true})[0];
  CHECK(values(second) == Values{12, -18});
  CHECK(values(grad({second}, {x}, {constant({1, 1})})[0]) == Values{6, 6});
  CHECK_FALSE(x.grad().defined());
}

TEST_CASE("grad of chosen inputs, non-leaf ones too") {
  const Tensor x = variable({2}), unused = variable({1});
  const Tensor middle = x * x, y = middle * middle * x;
  const std::vector<Tensor> found = grad({y}, {middle, x}, {}, {.retain_graph = true});
  CHECK(values(found[0]) == Values{2 * 4 * 2});
  CHECK(values(found[1]) == Values{5 * 16});
  CHECK_THROWS_WITH_AS(grad({y}, {unused}, {}, {.retain_graph = true}),
                       "grad: input 0 was not used by the outputs (allow_unused permits it)",
                       AutogradError);
  CHECK_FALSE(grad({y}, {unused}, {}, {.retain_graph = true}, true)[0].defined());
  CHECK(values(grad({y}, {y}, {}, {.retain_graph = true})[0]) == Values{1});
  CHECK(values(grad({y, middle}, {x}, {constant({1}), constant({10})})[0]) == Values{80 + 40});
}

TEST_CASE("grad visits only what leads to its inputs") {
  const Tensor x = variable({1}), other = variable({1});
  bool visited = false;
  const Tensor side =
      record("side", {other}, (other * 2.0).detach(), [&](Backward&, const Tensor& g) {
        visited = true;
        return Gradients{g};
      });
  CHECK(values(grad({x * 3.0 + side}, {x})[0]) == Values{3});
  CHECK_FALSE(visited);
}

TEST_CASE("only needed gradients are computed") {
  const Tensor x = variable({1}), fixed = constant({2});
  const Tensor y = record("product", {x, fixed}, (x * fixed).detach(),
                          [fixed = save(fixed)](Backward& pass, const Tensor& g) {
                            CHECK(pass.needs(0));
                            CHECK_FALSE(pass.needs(1));
                            return Gradients{g * pass(fixed), Tensor()};
                          });
  y.backward();
  CHECK(values(x.grad()) == Values{2});
}

TEST_CASE("a gradient that is missing or of the wrong shape is an error, not a guess") {
  const Tensor x = variable({1, 2});
  const Tensor cut =
      record("cut", {x}, (x * 2.0).detach(), [](Backward&, const Tensor&) { return Gradients(1); });
  CHECK_THROWS_WITH_AS(cut.backward(constant({1, 1})),
                       "cut: its backward gave no gradient for input 0", AutogradError);
  const Tensor wrong = record("wrong", {x}, (x * 2.0).detach(),
                              [](Backward&, const Tensor& g) { return Gradients{g.sum()}; });
  CHECK_THROWS_WITH_AS(wrong.backward(constant({1, 1})),
                       "wrong: the gradient of input 0: expected float64 [2] on cpu, got float64 "
                       "[] on cpu",
                       AutogradError);
}

TEST_CASE("an overwritten saved tensor is found") {
  const Tensor x = variable({1, 2});
  Tensor y = x * 1.0;
  const Tensor z = y * y;
  y.add_(1);
  CHECK_THROWS_WITH_AS(z.backward(constant({1, 1})),
                       "mul: a saved tensor (float64 [2]) was overwritten in place between the "
                       "forward and the backward pass: expected version 0, got 1",
                       AutogradError);

  Tensor e = exp(x);
  const Tensor after = e * 2.0;
  {
    const NoGradGuard no_grad;
    e.zero_();
  }
  CHECK_THROWS_WITH_AS(after.backward(constant({1, 1})), doctest::Contains("exp: a saved tensor"),
                       AutogradError);
}

TEST_CASE("writes through views and detached aliases raise the version") {
  const Tensor x = variable({1, 2});
  for (const bool through_view : {true, false}) {
    const Tensor y = x * 1.0, z = y * y;
    {
      const NoGradGuard no_grad;
      Tensor alias = through_view ? y.slice(0, 0, 1) : y.detach();
      alias.fill_(7);
    }
    CHECK_THROWS_AS(z.backward(constant({1, 1})), AutogradError);
  }
  // Nothing was saved, so nothing is wrong.
  Tensor y = x * 1.0;
  const Tensor z = y + 1.0;
  y.fill_(3);
  z.backward(constant({1, 1}));
  CHECK(values(x.grad()) == Values{1, 1});
}

TEST_CASE("rules of in-place writes") {
  Tensor x = variable({1, 2});
  CHECK_THROWS_WITH_AS(x.add_(1), doctest::Contains("add_: a leaf that requires grad"),
                       AutogradError);
  CHECK(values(x) == Values{1, 2});
  {
    const NoGradGuard no_grad;
    x.add_(1);
  }
  CHECK(values(x) == Values{2, 3});
  CHECK(x.is_leaf());

  Tensor buffer = constant({0, 0});
  // A tensor without grad becomes part of the graph when a variable is written to it.
  buffer.copy_(x);
  CHECK(buffer.requires_grad());
  buffer.mul_(3);
  buffer.backward(constant({1, 10}));
  CHECK(values(x.grad()) == Values{3, 30});
}

TEST_CASE("hooks see and replace gradients, in order") {
  const Tensor x = variable({2});
  Tensor y = x * 3.0;
  std::string order;
  y.register_hook([&](const Tensor& g) {
    order += "a";
    CHECK(values(g) == Values{4});
    return g * 10.0;
  });
  y.register_hook([&](const Tensor& g) {
    order += "b";
    CHECK(values(g) == Values{40});
    return Tensor();
  });
  Tensor(x).register_hook([&](const Tensor& g) {
    order += "c";
    CHECK(values(g) == Values{120});
    return g + 1.0;
  });
  (y * 2.0 + y * 2.0).backward();
  CHECK(order == "abc");
  CHECK(values(x.grad()) == Values{121});
}

TEST_CASE("retain_grad keeps the gradient of a non-leaf") {
  const Tensor x = variable({2});
  Tensor y = x * 3.0, dropped = x * 4.0;
  y.retain_grad();
  dropped.retain_grad();
  const Tensor z = y * y + dropped;
  dropped = Tensor();  // the node must not remember it
  z.backward();
  CHECK(values(y.grad()) == Values{12});
  CHECK(values(x.grad()) == Values{40});
}

TEST_CASE("detach, NoGradGuard and requires_grad") {
  const Tensor x = variable({2});
  const Tensor alias = x.detach();
  CHECK_FALSE(alias.requires_grad());
  CHECK(alias.data<const double>() == x.data<const double>());
  {
    const NoGradGuard no_grad;
    CHECK_FALSE((x * x).requires_grad());
    const EnableGradGuard recording;
    CHECK((x * x).requires_grad());
  }
  CHECK(grad_enabled());
  (x * alias).backward();
  CHECK(values(x.grad()) == Values{2});
  CHECK_THROWS_WITH_AS(tensor<int64_t>({1}).requires_grad_(),
                       "requires_grad_: expected a floating dtype, got int64", DTypeError);
  CHECK_THROWS_AS((x * x).requires_grad_(false), AutogradError);
}

TEST_CASE("a leaf that was frozen after its use gets no gradient") {
  Tensor x = variable({2}), w = variable({3});
  const Tensor y = x * w;
  w.requires_grad_(false);
  y.backward({.retain_graph = true});
  CHECK(values(x.grad()) == Values{3});
  CHECK_FALSE(w.grad().defined());
  w.requires_grad_();
  y.backward();
  CHECK(values(x.grad()) == Values{6});
  CHECK(values(w.grad()) == Values{2});
}

TEST_CASE("a cast passes the gradient back in the input's dtype") {
  const Tensor x = variable({1, 2});
  const Tensor g = tensor<float>({3, 4});
  x.to(DType::float32).backward(g);
  CHECK(x.grad().dtype() == DType::float64);
  CHECK(values(x.grad()) == Values{3, 4});
  CHECK_FALSE(x.to(DType::int64).requires_grad());
}

TEST_CASE("backward inside backward") {
  const Tensor x = variable({2});
  nested(nested(x) * 5.0).backward();
  CHECK(values(x.grad()) == Values{20});
}

TEST_CASE("an exception in a backward closure leaves the tape usable") {
  const Tensor x = variable({2});
  const Tensor y = record(
      "failing", {x}, (x * 2.0).detach(),
      [](Backward&, const Tensor&) -> Gradients { throw ValueError("failing", "on purpose"); });
  CHECK_THROWS_AS(y.backward(), ValueError);
  CHECK(grad_enabled());
  (x * 2.0).backward();
  CHECK(values(x.grad()) == Values{2});
}

TEST_CASE("anomaly mode names the op that made the first NaN") {
  const AnomalyGuard guard;
  const Tensor x = variable({-1, 4});
  CHECK_THROWS_WITH_AS(log(x), doctest::Contains("log: made the first NaN, in the forward pass"),
                       AutogradError);
  const Tensor zero = variable({0});
  // 0 * d sqrt(0) = 0 * infinity.
  const Tensor y = sqrt(zero) * 0.0;
  CHECK_THROWS_WITH_AS(y.backward(), doctest::Contains("made the first NaN, in the gradient of"),
                       AutogradError);
}

TEST_CASE("an input that backward does not need is not kept alive") {
  const Tensor x = variable({1});
  const int64_t before = memory_stats(kCPU).current;
  const Tensor y = [&] {
    const Tensor large = x.expand({100000}).clone();
    return (large + 1.0).sum();
  }();
  CHECK(memory_stats(kCPU).current - before < 100000);
  y.backward();
  CHECK(values(x.grad()) == Values{100000});
}
