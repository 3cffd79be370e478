#include <doctest/doctest.h>

#include <string>
#include <type_traits>
#include <vector>

#include <sash/ops/attention/exact/attention.h>
#include <sash/ops/elementwise/binary.h>
#include <sash/ops/reduce/reduce.h>
#include <sash/tensor/autograd/grad_mode.h>
#include <sash/tensor/factories.h>

#include "../support/expect_error.h"

using namespace sash;
using namespace sash::testing;

using Floats = std::vector<float>;

TEST_CASE("writes: assigning to a temporary view writes elements, to a named tensor rebinds it") {
  Tensor x = zeros({3, 2});
  const Tensor y = tensor({1., 2.});
  x[0] = y;
  x[1] = 3;
  x[2][1] = 0.5;
  CHECK(x.to_vector<float>() == Floats{1, 2, 3, 3, 0, 0.5F});
  x.slice(0, 0, 2) = tensor({{5}, {6}});  // broadcast and cast
  CHECK(x.to_vector<float>() == Floats{5, 5, 6, 6, 0, 0.5F});
  x.mT()[1] = x.mT()[0];
  CHECK(x.to_vector<float>() == Floats{5, 5, 6, 6, 0, 0});
  x[0] = x[1] = y;
  CHECK(x.to_vector<float>() == Floats{1, 2, 1, 2, 0, 0});
  const Tensor& name = x;
  name[2] = true;
  CHECK(x[2].to_vector<float>() == Floats{1, 1});
  x.view({6}) = tensor({1, 2, 3, 4, 5, 6});
  CHECK(x.to_vector<float>() == Floats{1, 2, 3, 4, 5, 6});

  Tensor row = x[0];
  row = y;  // another name for y
  CHECK(row.is_same(y));
  CHECK(x[0].to_vector<float>() == Floats{1, 2});
  std::vector<Tensor> rows{x[0], x[1], x[2]};
  rows.erase(rows.begin());
  rows[0] = y;
  std::swap(rows[0], rows[1]);
  CHECK(rows[1].is_same(y));
  CHECK(x.to_vector<float>() == Floats{1, 2, 3, 4, 5, 6});

  expect_error<ShapeError>("copy_: expected shapes that broadcast together, got [2] and [3]", [&] {
    x[0] = tensor({1, 2, 3});
  });
  const std::string lost =
      "operator=: expected a view, such as x[0] (index_put_ writes where tensors index), got a "
      "temporary that shares its elements with no "
      "tensor";
  expect_error<ValueError>(lost, [&] { x.mT().reshape({6}) = y[0]; });
  expect_error<ValueError>(lost, [&] { x.clone() = 0; });
  expect_error<ValueError>("tensor: expected a defined tensor, got an undefined one",
                           [&] { x.grad() = 0; });
  CHECK(x.to_vector<float>() == Floats{1, 2, 3, 4, 5, 6});
  CHECK_FALSE(std::is_assignable_v<Tensor&, int>);
  CHECK(std::is_nothrow_move_assignable_v<Tensor>);
}

TEST_CASE("writes: assigning to a view counts as a write in place") {
  const Tensor w = tensor({2., 3.}, {.requires_grad = true});
  Tensor x = ones({2});
  const Tensor loss = (w * x).sum();
  x[0] = 5;
  CHECK_THROWS_AS(loss.backward(), AutogradError);
  CHECK_THROWS_AS(w[0] = 1, AutogradError);
  {
    const NoGradGuard no_grad;
    w[0] = 1;
  }
  CHECK(w.detach().to_vector<float>() == Floats{1, 3});
}

TEST_CASE("writes: gradients follow what is assigned to a view") {
  const Tensor w = tensor({{2., 3.}, {4., 5.}}, {.requires_grad = true});
  const Tensor row = tensor({7., 8.}, {.requires_grad = true});
  const Tensor weights = tensor({{1., 10.}, {100., 1000.}});
  Tensor x = w * 1.0;
  x[0] = row;
  x[1][1] = 0;
  (x * weights).sum().backward();
  CHECK(w.grad().to_vector<float>() == Floats{0, 0, 100, 0});
  CHECK(row.grad().to_vector<float>() == Floats{1, 10});
}

TEST_CASE("writes: data<T>() counts as a write, data<const T>() does not") {
  const Tensor w = tensor({2., 3.}, {.requires_grad = true});
  const Tensor x = ones({2});
  {
    const Tensor loss = (w * x).sum();
    CHECK(x.data<const float>()[1] == 1);
    loss.backward();
    CHECK(w.grad().to_vector<float>() == Floats{1, 1});
  }
  const Tensor loss = (w * x).sum();
  x.data<float>()[1] = 7;
  CHECK_THROWS_AS(loss.backward(), AutogradError);
  const Tensor part = x[0];
  const Tensor again = (w * x).sum();
  part.data<float>()[0] = 7;  // the memory is x's
  CHECK_THROWS_AS(again.backward(), AutogradError);
  const Tensor last = (w * x).sum();
  CHECK_THROWS_AS(x.data<double>(), DTypeError);  // nothing was written
  last.backward();
}

TEST_CASE("writes: a mask whose tensor data<T>() wrote is compiled again") {
  const Tensor lengths = tensor<int32_t>({70, 3});
  const AttentionMask mask = AttentionMask::window(20, 5) & AttentionMask::key_lengths(lengths);
  const Tensor dense = ones({70, 70}, {.dtype = DType::boolean});
  const AttentionMask table(dense);
  const Tensor q = randn({2, 1, 70, 4}), k = randn({2, 1, 70, 4}), v = randn({2, 1, 70, 4});
  const auto attend = [&](const AttentionMask& with) {
    return attention(q, k, v, {.mask = with}).to_vector<float>();
  };
  const Floats before = attend(mask), all = attend(table);
  CHECK(lengths.data<const int32_t>()[0] == 70);
  lengths.data<int32_t>()[0] = 9;
  bool* const visible = dense.data<bool>();
  for (int64_t i = 0; i < 70; ++i) visible[i * 70] = false;
  CHECK(attend(mask) != before);
  CHECK(attend(table) != all);
  CHECK(attend(mask) ==
        attend(AttentionMask::window(20, 5) & AttentionMask::key_lengths(tensor<int32_t>({9, 3}))));
  CHECK(attend(table) == attend(AttentionMask(dense.clone())));
}
