// In-place writes through views, and views of what was written in place: gradients against finite
// differences, to second order.
#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <vector>

#include <sash/core/backend/backend.h>
#include <sash/ops/elementwise/binary.h>
#include <sash/ops/elementwise/unary.h>
#include <sash/ops/reduce/reduce.h>
#include <sash/tensor/autograd/grad_mode.h>
#include <sash/tensor/autograd/gradcheck.h>
#include <sash/tensor/factories.h>

#include "../support/expect_error.h"
#include "../support/random_numbers.h"

using namespace sash;
using sash::testing::expect_error;
using sash::testing::RandomNumbers;

namespace {

using Values = std::vector<double>;
using Program = std::function<Tensor(const Tensor& x, const Tensor& w)>;  // x [3, 4], w [4]

constexpr TensorOptions kDoubles{.dtype = DType::float64};

Values values(const Tensor& x) { return x.to_vector<double>(); }

Tensor numbers(const Shape& shape, uint64_t seed) {
  RandomNumbers random(seed);
  Values drawn;
  for (int64_t i = 0; i < numel(shape); ++i) drawn.push_back(0.5 + random.uniform());
  return tensor(drawn, shape);
}

void check_gradients(const Program& program, bool fast = false) {
  const auto fn = [&](const std::vector<Tensor>& in) { return program(in[0], in[1]); };
  const std::vector<Tensor> in{numbers({3, 4}, 1).requires_grad_(),
                               numbers({4}, 2).requires_grad_()};
  const GradcheckReport first = gradcheck(fn, in, {.fast = fast});
  CHECK_MESSAGE(first.ok, first.message());
  const GradcheckReport second = gradgradcheck(fn, in, {.fast = fast});
  CHECK_MESSAGE(second.ok, second.message());
}

}  // namespace

TEST_CASE("a view older than a write to its base takes the base's new history") {
  check_gradients([](const Tensor& x, const Tensor& w) {
    Tensor y = x * 1.0;
    const Tensor row = y[1], flat = y.view({12}), turned = y.mT();
    y.mul_(w);
    return row * row + flat.slice(0, 0, 4) * turned.select(1, 2);
  });
  // The base had no history when the view was made.
  check_gradients([](const Tensor& x, const Tensor& w) {
    Tensor base = numbers({3, 4}, 3);
    const Tensor view = base.view({4, 3});
    CHECK_FALSE(view.requires_grad());
    base.add_(w);
    CHECK(view.requires_grad() == grad_enabled());
    CHECK(view.is_leaf() != grad_enabled());
    return view * view * x.view({4, 3});
  });
  check_gradients([](const Tensor& x, const Tensor& w) {
    Tensor y = x * x;
    const Tensor wide = y.unsqueeze(0).expand({2, 3, 4});
    y.mul_(w);
    y.div_(w + 1.0);
    return wide * wide * w;
  });
}

TEST_CASE("a product with a view older than a write to its base: gradients of both factors") {
  const Tensor w = tensor<double>({1, 1}, {.requires_grad = true});
  Tensor x = zeros({2}, kDoubles);
  const Tensor v = x.view({2});
  x.add_(w);
  (v * w).sum().backward();
  CHECK(values(w.grad()) == Values{2, 2});
}

TEST_CASE("a write through a view is recorded on its base") {
  check_gradients([](const Tensor& x, const Tensor& w) {
    Tensor y = x * x;
    y[0].mul_(3);
    y[1].mul_(w);
    y.slice(1, 0, 4, 2).add_(w.slice(0, 1, 3));
    return y * y;
  });
  check_gradients([](const Tensor& x, const Tensor& w) {
    Tensor y = x * x;
    y.mT().slice(0, 1, 3).div_(w.narrow(0, 0, 3));
    y.view({2, 6})[1].fill_(2);
    y[0].sub_(w);
    return y * y * w;
  });
  check_gradients([](const Tensor& x, const Tensor& w) {
    Tensor y = x * 1.0;
    y[0].add_(y[1]);
    y[2].mul_(y[0]);
    y[1].copy_(w);
    return y * y;
  });
}

TEST_CASE("a write through a view reaches older views; the view can be written again") {
  check_gradients([](const Tensor& x, const Tensor& w) {
    Tensor y = x * x;
    Tensor row = y[0];
    const Tensor before = row * 1.0, flat = y.view({12}), same = y[0];
    row.mul_(w);
    row.add_(w);
    const Tensor between = row.clone() * flat.slice(0, 0, 4).clone();
    y.mul_(w);
    row.mul_(before);
    return between * same + row * flat.slice(0, 4, 8) + y[0] * same;
  });
}

TEST_CASE("a buffer without grad that is filled through views is recorded") {
  check_gradients([](const Tensor& x, const Tensor& w) {
    const Tensor buffer = zeros({4, 4}, kDoubles);
    for (int64_t i = 0; i < 3; ++i) buffer[i].copy_(x[i] * w);
    CHECK(buffer.requires_grad() == grad_enabled());
    return buffer * buffer;
  });
  // A buffer in column-major order.
  check_gradients([](const Tensor& x, const Tensor& w) {
    Tensor turned = zeros({4, 3}, kDoubles).mT().detach();
    turned[1].copy_(w);
    const Tensor column = turned.select(1, 2);
    turned.add_(x);
    return turned * turned * w + column.sum();
  });
}

TEST_CASE("a write to a view whose base nobody else holds is recorded on the view") {
  check_gradients([](const Tensor& x, const Tensor& w) {
    Tensor y = (x * x).mT().reshape({12});
    y.slice(0, 0, 4).mul_(w);
    return y * y;
  });
  const Tensor x = ones({2, 3}, {.dtype = DType::float64, .requires_grad = true});
  Tensor y = (x * 2.0).view({6});
  y.mul_(3);
  CHECK(to_string(y).find("grad_fn=<mul_>") != std::string::npos);
  y.sum().backward();
  CHECK(values(x.grad()) == Values(6, 6));
}

TEST_CASE("a write through a view of a base without elements needs no memory") {
  const Tensor x = zeros({0, int64_t{1} << 37}, {.requires_grad = true});
  Tensor y = x * 2.0;
  Tensor half = y.slice(1, 0, int64_t{1} << 36);
  half.mul_(3);
  const Tensor g = grad({y.sum() + half.sum()}, {x})[0];
  CHECK(g.shape() == x.shape());
}

TEST_CASE("random programs of views and in-place writes") {
  for (uint64_t seed = 0; seed < 24; ++seed) {
    CAPTURE(seed);
    check_gradients(
        [seed](const Tensor& x, const Tensor& w) {
          RandomNumbers random(seed);
          const bool plain = random.below(3) == 0;
          Tensor base = plain ? numbers({3, 4}, seed) : x * w;
          std::vector<Tensor> views{base};
          Tensor result = x * 0.5;
          for (int step = 0; step < 12; ++step) {
            Tensor v = views[random.below(views.size())];
            const int64_t last = v.rank() - 1;
            const int64_t axis = int64_t(random.below(uint64_t(v.rank())));
            switch (random.below(6)) {
              case 0:
                views.push_back(v.transpose(0, last));
                break;
              case 1:
                views.push_back(v.slice(axis, int64_t(random.below(2)), {}, 2));
                break;
              case 2:
                views.push_back(v.unsqueeze(axis));
                break;
              case 3:
                v.mul_(w.slice(0, 0, 1) + 0.5);
                break;
              case 4:
                v.add_(sin(views[random.below(views.size())].sum()));
                break;
              default:
                result = result + sin(v.clone()).sum() * x;
            }
          }
          return result + base * base;
        },
        true);
  }
}

TEST_CASE("views older than a write to their base, as roots and inputs of backward passes") {
  const Tensor x = tensor<double>({1, 2}, {.requires_grad = true});
  Tensor y = x * 2.0;
  const Tensor v = y[0];
  y.mul_(3);
  v.backward({.retain_graph = true});
  CHECK(values(x.grad()) == Values{6, 0});
  CHECK(values(grad({v}, {x})[0]) == Values{6, 0});

  Tensor z = x * 2.0;
  const Tensor older = z[1];
  z.mul_(z);
  CHECK(values(grad({older * 5.0}, {older})[0]) == Values{5});
}

TEST_CASE("retained gradients and hooks of views that were written") {
  const Tensor x = tensor<double>({1, 2}, {.requires_grad = true});
  Tensor y = x * 1.0;
  Tensor v = y[0];
  v.retain_grad();
  y.retain_grad();
  v.mul_(5);
  (y * 2.0).sum().backward();
  CHECK(values(v.grad()) == Values{2});
  CHECK(values(y.grad()) == Values{2, 2});
  CHECK(values(x.grad()) == Values{10, 2});
}

TEST_CASE("views that cannot be written in a graph") {
  Tensor x = tensor<double>({1, 2}, {.requires_grad = true});
  expect_error<AutogradError>(
      "mul_: a view of a leaf that requires grad cannot be written in place while recording; use "
      "NoGradGuard or write to a result of it",
      [&] { x[0].mul_(2); });
  Tensor y = x * 1.0, plain = zeros({2}, kDoubles);
  const auto unrecorded = [](const Tensor& t) {
    const NoGradGuard no_grad;
    return t[0];
  };
  const std::string message =
      ": a view that was made while nothing was recorded cannot be written in a graph: its base "
      "would miss the gradient; make the view again, or clone it";
  expect_error<AutogradError>("fill_" + message, [&] { unrecorded(y).fill_(2); });
  expect_error<AutogradError>("copy_" + message, [&] { unrecorded(plain).copy_(x[1]); });
  unrecorded(plain).fill_(7);
  CHECK(values(plain) == Values{7, 0});
  CHECK(values(y) == Values{1, 2});

  const Tensor wide = x[0].expand({3, 2}).detach();
  expect_error<AutogradError>(
      "add_: a view of an expanded tensor cannot be written in a graph: its elements share memory "
      "with others; clone the expanded tensor first",
      [&] { wide.slice(0, 0, 1).slice(1, 0, 1).add_(x[1]); });

  // Writes under NoGradGuard are no part of the history.
  Tensor v = y[0];
  {
    const NoGradGuard no_grad;
    y.mul_(3);
    v.mul_(3);
  }
  (v + y[1]).backward();
  CHECK(values(v) == Values{9});
  CHECK(values(x.grad()) == Values{1, 1});
}
