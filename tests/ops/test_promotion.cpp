#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include <sash/ops/elementwise/binary.h>
#include <sash/ops/elementwise/compare.h>
#include <sash/ops/elementwise/promotion.h>
#include <sash/ops/elementwise/unary.h>
#include <sash/ops/elementwise/where.h>
#include <sash/ops/shape/concat.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/kernels/memory.h>

#include "../support/expect_error.h"

using namespace sash;
using namespace sash::testing;

namespace {

constexpr DType f32 = DType::float32, f64 = DType::float64, f16 = DType::float16,
                bf16 = DType::bfloat16, i32 = DType::int32, i64 = DType::int64, u8 = DType::uint8,
                b8 = DType::boolean;
constexpr DType kEvery[] = {f32, f64, f16, bf16, i32, i64, u8, b8};

using Numbers = std::vector<double>;

Tensor of(DType dtype, const Numbers& values) {
  return tensor(values, {static_cast<int64_t>(values.size())}, {.dtype = dtype});
}

Tensor variable(DType dtype, const Numbers& values) {
  Tensor x = of(dtype, values).detach();
  return x.requires_grad_();
}

void check(const Tensor& x, DType dtype, const Numbers& values) {
  CHECK(name(x.dtype()) == name(dtype));
  CHECK(x.to_vector<double>() == values);
}

}  // namespace

TEST_CASE("two dtypes promote as in PyTorch") {
  // PyTorch's torch.promote_types.
  constexpr DType expected[8][8] = {
      {f32, f64, f32, f32, f32, f32, f32, f32},  {f64, f64, f64, f64, f64, f64, f64, f64},
      {f32, f64, f16, f32, f16, f16, f16, f16},  {f32, f64, f32, bf16, bf16, bf16, bf16, bf16},
      {f32, f64, f16, bf16, i32, i64, i32, i32}, {f32, f64, f16, bf16, i64, i64, i64, i64},
      {f32, f64, f16, bf16, i32, i64, u8, u8},   {f32, f64, f16, bf16, i32, i64, u8, b8},
  };
  for (size_t a = 0; a < 8; ++a) {
    for (size_t b = 0; b < 8; ++b) {
      CAPTURE(name(kEvery[a]));
      CAPTURE(name(kEvery[b]));
      CHECK(name(promote_types(kEvery[a], kEvery[b])) == name(expected[a][b]));
      const Tensor x = zeros({2}, {.dtype = kEvery[a]}), y = zeros({2}, {.dtype = kEvery[b]});
      CHECK(result_type(x, y) == expected[a][b]);
      CHECK(result_type(x[0], y[0]) == expected[a][b]);
    }
  }
}

TEST_CASE("0-dimensional tensors and scalars only raise the category, as in PyTorch") {
  // torch.result_type of a tensor with axes (row) and one without (column).
  constexpr DType expected[8][8] = {
      {f32, f32, f32, f32, f32, f32, f32, f32},  {f64, f64, f64, f64, f64, f64, f64, f64},
      {f16, f16, f16, f16, f16, f16, f16, f16},  {bf16, bf16, bf16, bf16, bf16, bf16, bf16, bf16},
      {f32, f64, f16, bf16, i32, i32, i32, i32}, {f32, f64, f16, bf16, i64, i64, i64, i64},
      {f32, f64, f16, bf16, u8, u8, u8, u8},     {f32, f64, f16, bf16, i32, i64, u8, b8},
  };
  for (size_t a = 0; a < 8; ++a) {
    const Tensor x = zeros({2}, {.dtype = kEvery[a]});
    for (size_t b = 0; b < 8; ++b) {
      CAPTURE(name(kEvery[a]));
      CAPTURE(name(kEvery[b]));
      const Tensor y = zeros({}, {.dtype = kEvery[b]});
      CHECK(name(result_type(x, y)) == name(expected[a][b]));
      CHECK(name(result_type(y, x)) == name(expected[a][b]));
    }
    for (const Tensor& t : {x, x[0]}) {
      CHECK(result_type(t, 0.5) == (is_floating(kEvery[a]) ? kEvery[a] : f32));
      CHECK(result_type(t, 2) == (kEvery[a] == b8 ? i64 : kEvery[a]));
    }
  }
  set_default_dtype(f64);
  CHECK(result_type(zeros({2}, {.dtype = i64}), 0.5) == f64);
  set_default_dtype(f32);
}

TEST_CASE("arithmetic of several dtypes") {
  const Tensor ids = of(i64, {1, 2, 3}), x = of(f32, {0.5, 1, 2}), mask = of(b8, {1, 0, 1});
  check(ids * 0.5, f32, {0.5, 1, 1.5});
  check(0.5 * ids, f32, {0.5, 1, 1.5});
  check(ids + 0.5, f32, {1.5, 2.5, 3.5});
  check(ids - 0.5, f32, {0.5, 1.5, 2.5});
  check(0.5 - ids, f32, {-0.5, -1.5, -2.5});
  check(3 / of(i32, {1, 2, 4}), f32, {3, 1.5, 0.75});
  check(ids / 2, f32, {0.5, 1, 1.5});
  check(ids / of(i32, {2, 2, 2}), f32, {0.5, 1, 1.5});
  check(ids * 2, i64, {2, 4, 6});
  check(1 - mask, i64, {0, 1, 0});
  check(mask + 1, i64, {2, 1, 2});
  check(x * mask, f32, {0.5, 0, 2});
  check(x + ids, f32, {1.5, 3, 5});
  check(ids - x, f32, {0.5, 1, 1});
  check(of(u8, {250, 1, 2}) + of(i32, {10, 0, 0}), i32, {260, 1, 2});
  check(x + of(f64, {1, 2, 3}), f64, {1.5, 3, 5});
  check(x * scalar_tensor(0.1, {.dtype = f64}), f32, {0.5f * 0.1f, 0.1f, 2 * 0.1f});
  check(of(f16, {1, 2}) + of(bf16, {1, 2}), f32, {2, 4});
  check(pow(of(f64, {2, 3, 4}), ids), f64, {2, 9, 64});
  check(pow(ids, 0.5) * 1, f32, {1, std::sqrt(2.0f), std::sqrt(3.0f)});
  check(maximum(ids, x), f32, {1, 2, 3});
  check(minimum(x, ids), f32, {0.5, 1, 2});
  check(clamp(ids, 1.5), f32, {1.5, 2, 3});
  check(clamp(of(i32, {1, 2, 3}), 2, int64_t{1} << 40), i32, {2, 2, 3});
  check(sqrt(of(i64, {1, 4, 9})), f32, {1, 2, 3});
  check(exp(of(b8, {0})), f32, {1});
  set_default_dtype(f64);
  check(ids * 0.1, f64, {0.1, 2 * 0.1, 3 * 0.1});
  set_default_dtype(f32);
}

TEST_CASE("dividing by a scalar rounds once") {
  Numbers numbers, quotients, inverses;
  for (int i = 1; i <= 1000; ++i) {
    const auto value = static_cast<float>(i);
    numbers.push_back(value);
    quotients.push_back(value / 49.0f);
    inverses.push_back(2.5f / value);
  }
  const Tensor x = of(f32, numbers);
  check(x / 49.0, f32, quotients);
  check(2.5 / x, f32, inverses);
  Tensor v = variable(f32, {49});
  (v / 49.0).backward();
  check(v.grad(), f32, {1.0f / 49.0f});
  constexpr double infinity = std::numeric_limits<double>::infinity();
  check(of(f32, {1, -1}) / 0, f32, {infinity, -infinity});
}

TEST_CASE("comparisons of several dtypes") {
  const Tensor ids = of(i64, {0, 1, 2}), bytes = of(u8, {0, 1, 255});
  check(lt(ids, 0.5), b8, {1, 0, 0});
  check(ge(ids, 1.5), b8, {0, 0, 1});
  check(eq(bytes, 256), b8, {0, 0, 0});
  check(lt(bytes, 256), b8, {1, 1, 1});
  check(gt(bytes, -1), b8, {1, 1, 1});
  check(eq(of(i32, {0, 1}), int64_t{1} << 32), b8, {0, 0});
  check(eq(of(b8, {0, 1}), 2), b8, {0, 0});
  check(eq(of(i64, {9007199254740992}), int64_t{9007199254740993}), b8, {0});
  check(eq(bytes, std::numeric_limits<double>::quiet_NaN()), b8, {0, 0, 0});
  check(lt(ids, of(f32, {0.5, 0.5, 2.5})), b8, {1, 0, 1});
  check(eq(bytes, of(i32, {256, 1, -1})), b8, {0, 1, 0});
  check(ne(of(b8, {0, 1}), of(i64, {0, 2})), b8, {0, 1});
  CHECK_FALSE(lt(variable(f32, {1}), ids).requires_grad());
}

TEST_CASE("choices and pieces of several dtypes") {
  const Tensor ids = of(i64, {1, 2}), x = of(f32, {0.5, 1.5}), mask = of(b8, {1, 0});
  check(where(mask, x, ids), f32, {0.5, 2});
  check(where(mask, ids, scalar_tensor(0.25)), f32, {1, 0.25});
  check(masked_fill(ids, mask, -1.0), i64, {-1, 2});
  check(masked_fill(ids, mask, 7), i64, {7, 2});
  check(masked_fill(mask, mask, false), b8, {0, 0});
  check(cat({ids, x}), f32, {1, 2, 0.5, 1.5});
  check(cat({x, of(f64, {0.1})}), f64, {0.5, 1.5, 0.1});
  check(cat({of(f16, {1}), mask, of(bf16, {2})}), f32, {1, 1, 0, 2});
  check(stack({ids, x}).reshape({4}), f32, {1, 2, 0.5, 1.5});
}

TEST_CASE("gradients of mixed operands arrive in each operand's dtype") {
  const Tensor single = variable(f32, {1, 2, 3}), wide = variable(f64, {0.5, 0.25, 2});
  const Tensor half = variable(f16, {1, 2, 3});
  const Tensor v = of(f64, {1, -2, 0.5});
  const auto gradients = [&](const Tensor& y) {
    return grad({y}, {single, wide}, {v.to(y.dtype())}, {.create_graph = true}, true);
  };
  for (const Tensor& y : {single * wide, wide * single}) {
    CHECK(y.dtype() == f64);
    const std::vector<Tensor> g = gradients(y);
    check(g[0], f32, {0.5, -0.5, 1});
    check(g[1], f64, {1, -4, 1.5});
    // d/dwide of v wide . w = v w, for the first gradient.
    check(grad({g[0]}, {wide}, {of(f32, {2, 3, 4})})[0], f64, {2, -6, 2});
  }
  const Tensor chosen = where(of(b8, {1, 0, 1}), single, wide);
  check(gradients(chosen)[0], f32, {1, 0, 0.5});
  check(gradients(chosen)[1], f64, {0, -2, 0});
  const Tensor joined = cat({single, wide, half});
  const std::vector<Tensor> pieces =
      grad({joined}, {single, wide, half}, {of(f64, {1, 2, 3, 4, 5, 6, 7, 8, 9})});
  check(pieces[0], f32, {1, 2, 3});
  check(pieces[1], f64, {4, 5, 6});
  check(pieces[2], f16, {7, 8, 9});
  check(grad({single * of(i64, {2, 3, 4})}, {single}, {ones({3})})[0], f32, {2, 3, 4});
  // A 0-dimensional operand takes the other's dtype, and its gradient comes back in its own.
  const Tensor scale = scalar_tensor(2, {.dtype = f64, .requires_grad = true});
  const Tensor scaled = single * scale;
  CHECK(scaled.dtype() == f32);
  const Tensor total = grad({scaled}, {scale}, {ones({3})})[0];
  CHECK(total.dtype() == f64);
  CHECK(total.item<double>() == 6);
}

TEST_CASE("operands of one dtype are not cast") {
  const Tensor x = variable(f32, {1, 2}), y = variable(f32, {3, 4});
  const uint64_t before = kernels::copy.calls(DeviceType::cpu);
  (x + y) * 2 - x / 3 + maximum(x, y);
  lt(x, y);
  lt(of(i64, {1}), 2);
  where(lt(x, 2), x, y);
  CHECK(kernels::copy.calls(DeviceType::cpu) == before + 1);  // of() casts
}

TEST_CASE("in-place ops keep the dtype, or refuse to lose a category") {
  Tensor x = of(f32, {1, 2, 3}), ids = of(i64, {1, 2, 3}), small = of(i32, {1, 2, 3});
  x.add_(ids);
  check(x, f32, {2, 4, 6});
  x.mul_(of(b8, {1, 0, 1}));
  check(x, f32, {2, 0, 6});
  x.div_(of(i32, {4, 1, 4}));
  check(x, f32, {0.5, 0, 1.5});
  x.sub_(of(f64, {0.5, -1, 0.5}));
  check(x, f32, {0, 1, 1});
  x.add_(ids, 0.5);
  check(x, f32, {0.5, 2, 2.5});
  small.mul_(ids);
  check(small, i32, {1, 4, 9});
  // Computed in float64 and rounded once.
  Tensor y = of(f32, {16777216});
  const Tensor tiny = of(f64, {1 + 1e-8});
  y.add_(tiny);
  check(y, f32, {16777218});
  expect_error<DTypeError>("add_: expected a result that may be cast to int64, got float32",
                           [&] { ids.add_(x); });
  expect_error<DTypeError>("mul_: expected a result that may be cast to int64, got float32",
                           [&] { ids.mul_(0.5); });
  expect_error<DTypeError>("add_: expected a result that may be cast to int64, got float32",
                           [&] { ids.add_(0.5); });
  expect_error<DTypeError>("add_: expected a result that may be cast to int64, got float32",
                           [&] { ids.add_(ids, 0.5); });
  expect_error<ValueError>("add_: expected a value of int32, got 4294967296",
                           [&] { small.add_(int64_t{1} << 32); });
  expect_error<ValueError>("fill_: expected a value of int64, got 0.5", [&] { ids.fill_(0.5); });
  check(ids, i64, {1, 2, 3});
}

TEST_CASE("gradients through in-place ops of several dtypes") {
  const Tensor leaf = variable(f32, {1, 2}), wide = variable(f64, {3, 4});
  Tensor y = leaf * 2;
  y.mul_(wide);
  check(y, f32, {6, 16});
  const std::vector<Tensor> g = grad({y}, {leaf, wide}, {of(f32, {1, 0.5})});
  check(g[0], f32, {6, 4});
  check(g[1], f64, {2, 2});
  const Tensor half = variable(f16, {1, 2});
  Tensor z = leaf * 2;
  z.add_(half, 3);
  check(z, f32, {5, 10});
  check(grad({z}, {half}, {of(f32, {1, 0.5})})[0], f16, {3, 1.5});
}

TEST_CASE("wrong calls: dtypes that no op of these takes") {
  const Tensor ids = of(i64, {1, 2}), bytes = of(u8, {1, 2}), mask = of(b8, {1, 0});
  expect_error<ValueError>("add: expected a value of uint8, got -1", [&] { bytes + -1; });
  expect_error<DTypeError>("sub: expected a dtype of numbers, got bool", [&] { mask - mask; });
  expect_error<ValueError>("add: expected a value of int32, got 4294967296",
                           [&] { of(i32, {1}) + (int64_t{1} << 32); });
  expect_error<ValueError>("masked_fill: expected a value of uint8, got 256",
                           [&] { masked_fill(bytes, mask, 256); });
  expect_error<ValueError>("masked_fill: expected a value of int64, got 0.5",
                           [&] { masked_fill(ids, mask, 0.5); });
  expect_error<ValueError>("masked_fill: expected a value of int64, got -inf",
                           [&] { masked_fill(ids, mask, -HUGE_VAL); });
  expect_error<ShapeError>("add: expected shapes that broadcast together, got [2] and [3]", [&] {
    ids + of(f32, {1, 2, 3});
  });
  expect_error<ValueError>("eq: expected a tensor, got an undefined tensor",
                           [&] { eq(ids, Tensor()); });
}
