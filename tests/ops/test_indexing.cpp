// Indices of several axes: views, copies and writes.
#include <doctest/doctest.h>

#include <sash/sash.h>

#include "../support/compare.h"
#include "../support/devices.h"

using namespace sash;
using namespace sash::testing;

TEST_CASE("indexing: without tensors it is a view, which can be assigned") {
  const Tensor x = zeros({3, 4});
  CHECK(x[{1, Slice(1, 3)}].tensor_view().data == x[1].narrow(0, 1, 2).tensor_view().data);
  x[{Slice(), -1}] = 5;
  x[{0, Slice({}, 2)}] = tensor({1.0, 2.0});
  CHECK(x.to_vector<float>() == std::vector<float>{1, 2, 0, 5, 0, 0, 0, 5, 0, 0, 0, 5});
  CHECK(x[{kEllipsis}].is_same(x));
}

TEST_CASE("indexing: new axes of a tensor of the most axes, where others go") {
  const Tensor x = arange(0, 256).view({2, 2, 2, 2, 2, 2, 2, 2}), rows = tensor({1, 0, 1});
  CHECK(x[{kNewAxis, 1}].shape() == Shape{1, 2, 2, 2, 2, 2, 2, 2});
  CHECK(all_same(x[{kNewAxis, kEllipsis, 1}], x.select(7, 1).unsqueeze(0)));
  CHECK(all_same(x[{kNewAxis, kNewAxis, rows, 1, rows, 0}],
                 x[{Slice(), 1, Slice(), 0}][{rows, rows}].unsqueeze(0).unsqueeze(0)));
  Tensor y = x.clone();
  y.index_put_({kNewAxis, 1, rows}, -1);
  CHECK(y[1].amax({}).item<int64_t>() == -1);
  CHECK(all_same(y[0], x[0]));
}

TEST_CASE("indexing: assigning to a copy is an error that names the way") {
  const Tensor x = zeros({3, 4});
  CHECK_THROWS_WITH_AS(x[x > 0] = 1, doctest::Contains("index_put_ writes where tensors index"),
                       ValueError);
}

TEST_CASE_TEMPLATE("indexing: of several values for one element the last stays", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  const TensorOptions on{.device = On::device};
  for (const int64_t n : {6, 1000}) {
    const Tensor index = arange(n, {.device = On::device}) % 3;
    const Tensor values = arange(n, {.dtype = DType::float32, .device = On::device});
    Tensor v = values.clone();
    v.requires_grad_();
    Tensor y = zeros({3}, on).index_put_({index}, v);
    std::vector<float> last;
    for (int64_t i = 0; i < 3; ++i) last.push_back(float((n - 1 - i) / 3 * 3 + i));
    CHECK(y.to_vector<float>() == last);
    (y * tensor({1.0, 2.0, 3.0}, on)).sum().backward();
    CHECK(v.grad().sum().item<float>() == 6);
    CHECK(v.grad()[{Slice(0, n - 3)}].abs().sum().item<float>() == 0);
  }
}

TEST_CASE_TEMPLATE("indexing: an index and values of the memory that is written", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  const TensorOptions on{.device = On::device};
  const auto put = [&](bool accumulate) {
    Tensor x = tensor({1, 2, 0, 1}, on);
    x.index_put_({x}, ones({4}, {.dtype = x.dtype(), .device = On::device}), accumulate);
    return x.to_vector<int64_t>();
  };
  CHECK(put(false) == std::vector<int64_t>{1, 1, 1, 1});
  CHECK(put(true) == std::vector<int64_t>{2, 4, 1, 1});
  Tensor x = tensor({1, 2, 0}, on);
  x.index_put_({x}, x);
  CHECK(x.to_vector<int64_t>() == std::vector<int64_t>{0, 1, 2});
}

TEST_CASE_TEMPLATE("indexing: an index out of range of its own axis is an error", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  const TensorOptions on{.device = On::device};
  const Tensor x = zeros({3, 4}, on), fine = tensor({0, 1}, on);
  for (const int64_t bad : {4, -5, 100}) {
    // 4 on the second axis is within both axes together.
    const Tensor columns = tensor(std::vector<int64_t>{0, bad}, {2}, on);
    CHECK(error_of<IndexError>(On::device, [&] { x[{fine, columns}]; }) != "");
    CHECK(error_of<IndexError>(On::device, [&] { x[{Slice(), columns}]; }) != "");
  }
}

TEST_CASE("indexing: gradients arrive through reads, writes and masks together") {
  const Tensor x = randn({4, 5}, {.dtype = DType::float64, .requires_grad = true});
  const Tensor v = randn({2, 5}, {.dtype = DType::float64, .requires_grad = true});
  const std::function<Tensor(const std::vector<Tensor>&)> f = [](const std::vector<Tensor>& in) {
    Tensor y = in[0] * 2;
    y.index_put_({tensor({-1, 0})}, in[1]);
    y[{Slice(), 2}] *= 3;
    y.index_put_({y.detach() > 1}, 0.5);
    return Tensor(y[tensor({0, 0, 3, 1})] * y[{Slice(), Slice({}, {}, 2)}].sum());
  };
  CHECK(gradcheck(f, {x, v}));
}

TEST_CASE("indexing: windows that overlap can be read, not written, and not used after a write") {
  const Tensor leaf = randn({6}, {.dtype = DType::float64, .requires_grad = true});
  Tensor x = leaf * 1;
  Tensor windows = x.unfold(0, 3, 1);
  CHECK_THROWS_AS(windows.add_(1), ValueError);
  CHECK_NOTHROW(windows.sum());
  x.mul_(2);
  CHECK_THROWS_AS(windows.sum(), AutogradError);
  Tensor apart = x.unfold(0, 3, 3);
  apart += 1;
  CHECK_NOTHROW(apart.sum().backward());
}
