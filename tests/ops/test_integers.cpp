#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include <sash/ops/elementwise/binary.h>
#include <sash/ops/elementwise/unary.h>
#include <sash/ops/index/sort.h>
#include <sash/ops/index/topk.h>
#include <sash/ops/linalg/baddbmm.h>
#include <sash/ops/linalg/einsum.h>
#include <sash/ops/linalg/linear.h>
#include <sash/ops/linalg/matmul.h>
#include <sash/ops/reduce/reduce.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>

#include "../support/devices.h"
#include "../support/expect_error.h"

using namespace sash;
using namespace sash::testing;

namespace {

constexpr DType i32 = DType::int32, i64 = DType::int64, u8 = DType::uint8, b8 = DType::boolean,
                f32 = DType::float32;

using Numbers = std::vector<int64_t>;

/// Vectors of one dtype on one device.
struct Maker {
  Device device;

  Tensor operator()(DType dtype, const Numbers& values) const {
    return tensor(values, {static_cast<int64_t>(values.size())}).to(dtype).to(device);
  }
};

void check(const Tensor& x, DType dtype, const Numbers& values) {
  CHECK(name(x.dtype()) == name(dtype));
  CHECK(x.to_vector<int64_t>() == values);
}

/// a b of whole numbers modulo 2^64, by plain loops.
Numbers product(const Numbers& a, const Numbers& b, size_t m, size_t k, size_t n) {
  Numbers c;
  for (size_t i = 0; i < m; ++i) {
    for (size_t j = 0; j < n; ++j) {
      uint64_t sum = 0;
      for (size_t l = 0; l < k; ++l) {
        sum += static_cast<uint64_t>(a[i * k + l]) * static_cast<uint64_t>(b[l * n + j]);
      }
      c.push_back(static_cast<int64_t>(sum));
    }
  }
  return c;
}

}  // namespace

TEST_CASE_TEMPLATE("integers: uint8 wraps, as in PyTorch", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  const Maker of{On::device};
  const Tensor a = of(u8, {250, 7, 0, 255}), b = of(u8, {10, 3, 1, 255});
  check(a + b, u8, {4, 10, 1, 254});
  check(a - b, u8, {240, 4, 255, 0});
  check(a * b, u8, {196, 21, 0, 1});
  check(a % b, u8, {0, 1, 0, 0});
  check(floor_divide(a, b), u8, {25, 2, 0, 1});
  check(maximum(a, b), u8, {250, 7, 1, 255});
  check(minimum(a, b), u8, {10, 3, 0, 255});
  check(-a, u8, {6, 249, 0, 1});
  check(abs(a), u8, {250, 7, 0, 255});
  check(sign(a), u8, {1, 1, 0, 1});
  check(square(a), u8, {36, 49, 0, 1});
  check(a + 6, u8, {0, 13, 6, 5});
  check(a - 1, u8, {249, 6, 255, 254});
  check(3 - a, u8, {9, 252, 3, 4});
  check(a * 2, u8, {244, 14, 0, 254});
  check(a % 4, u8, {2, 3, 0, 3});
  check(9 % b, u8, {9, 0, 0, 9});
  check(floor_divide(a, 4), u8, {62, 1, 0, 63});
  check(maximum(a, 8), u8, {250, 8, 8, 255});
  check(clamp(a, 5, 251), u8, {250, 7, 5, 251});
  check(clamp(a, -7, 1000), u8, {250, 7, 0, 255});
  check(clamp(a, {}, 9), u8, {9, 7, 0, 9});
  check(a + of(b8, {1, 0, 1, 1}), u8, {251, 7, 1, 0});
  check(a + of(i32, {10, 10, 10, 10}), i32, {260, 17, 10, 265});
  check(a.view({2, 2}) + of(u8, {6, 1}), u8, {0, 8, 6, 0});
  CHECK((a * 0.5).dtype() == f32);
  Tensor y = a.clone();
  check(y.add_(b), u8, {4, 10, 1, 254});
  check(y.sub_(b), u8, {250, 7, 0, 255});
  check(y.mul_(b), u8, {196, 21, 0, 1});
  check(y.add_(b, 2), u8, {216, 27, 2, 255});
  check(y.add_(44), u8, {4, 71, 46, 43});
  check(y.sub_(5), u8, {255, 66, 41, 38});
  check(y.mul_(3), u8, {253, 198, 123, 114});
  check(y.add_(y), u8, {250, 140, 246, 228});
  Tensor wide = zeros({2, 2}, {.dtype = u8, .device = On::device}), column = wide.select(1, 0);
  column.add_(of(u8, {9, 8}));
  check(wide.view({4}), u8, {9, 0, 8, 0});
  check(y += of(b8, {1, 1, 0, 0}), u8, {251, 141, 246, 228});
}

TEST_CASE_TEMPLATE("integers: bool adds by or and multiplies by and, as in PyTorch", On, Cpu,
                   Cuda) {
  if (missing(On::device)) return;
  const Maker of{On::device};
  const Tensor a = of(b8, {0, 0, 1, 1}), b = of(b8, {0, 1, 0, 1});
  check(a + b, b8, {0, 1, 1, 1});
  check(a * b, b8, {0, 0, 0, 1});
  check(maximum(a, b), b8, {0, 1, 1, 1});
  check(minimum(a, b), b8, {0, 0, 0, 1});
  check(sign(a), b8, {0, 0, 1, 1});
  check(square(a), i64, {0, 0, 1, 1});
  check(pow(a, 3), i64, {0, 0, 1, 1});
  check(a * 3, i64, {0, 0, 3, 3});
  check(amax(a.view({2, 2}), {0}), b8, {1, 1});
  check(amin(b.view({2, 2}), {1}), b8, {0, 0});
  check(sum(a), i64, {2});
  check(prod(b), i64, {0});
  check(cumsum(a, 0), i64, {0, 0, 1, 2});
  Tensor y = a.clone();
  check(y.add_(b), b8, {0, 1, 1, 1});
  check(y.mul_(a), b8, {0, 0, 1, 1});
  const Tensor three = of(b8, {0, 1, 1});
  expect_errors({
      {"DTypeError: sub: expected a dtype of numbers, got bool", [&] { a - b; }},
      {"DTypeError: neg: expected a dtype of numbers, got bool", [&] { -a; }},
      {"DTypeError: abs: expected a dtype of numbers, got bool", [&] { abs(a); }},
      {"DTypeError: remainder: expected a dtype of numbers, got bool", [&] { a % b; }},
      {"DTypeError: floor_divide: expected a dtype of numbers, got bool",
       [&] { floor_divide(a, b); }},
      {"DTypeError: pow: expected a dtype of numbers, got bool", [&] { pow(a, b); }},
      {"DTypeError: matmul: expected a dtype of numbers, got bool", [&] { matmul(a, b); }},
      {"DTypeError: sub_: expected a dtype of numbers, got bool", [&] { y.sub_(b); }},
      {"DTypeError: add_: expected a dtype of numbers, got bool", [&] { y.add_(b, 2); }},
      {"DTypeError: add_: expected a result that may be cast to bool, got int64",
       [&] { y.add_(1); }},
      {"DTypeError: mul_: expected a result that may be cast to bool, got uint8",
       [&] {
         y.mul_(of(u8, {1, 1, 1, 1}));
       }},
      {"DTypeError: mean: expected a floating dtype, got bool", [&] { mean(a); }},
      {"ShapeError: add: expected shapes that broadcast together, got [4] and [3]",
       [&] { a + three; }},
  });
  check(y, b8, {0, 0, 1, 1});
}

TEST_CASE_TEMPLATE("integers: powers, as in PyTorch", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  const Maker of{On::device};
  const Tensor x = of(i64, {0, 1, -1, 2, -3});
  check(pow(x, 0), i64, {1, 1, 1, 1, 1});
  check(pow(x, 1), i64, {0, 1, -1, 2, -3});
  check(pow(x, 2), i64, {0, 1, 1, 4, 9});
  check(pow(x, 3), i64, {0, 1, -1, 8, -27});
  check(pow(x, 5), i64, {0, 1, -1, 32, -243});
  check(pow(x, 63), i64, {0, 1, -1, INT64_MIN, 3237885987332494933});
  check(x.pow(2), i64, {0, 1, 1, 4, 9});
  check(pow(of(i32, {3, -70000}), 2), i32, {9, 605032704});
  check(pow(of(i32, {3, -70000}), 3), i32, {27, 383225856});
  check(pow(of(u8, {3, 16, 255}), 2), u8, {9, 0, 1});
  check(pow(of(u8, {3, 2, 255}), 5), u8, {243, 32, 255});
  check(pow(2, of(i64, {0, 3, 10})), i64, {1, 8, 1024});
  check(pow(2, of(u8, {0, 3, 8})), u8, {1, 8, 0});
  check(pow(of(u8, {3, 2}), of(u8, {2, 7})), u8, {9, 128});
  check(pow(of(i32, {7, 2}), of(i64, {2, 40})), i64, {49, int64_t{1} << 40});
  // A negative exponent from a tensor: the whole part of 1 / x^|b|, and 0 for x = 0.
  check(pow(x, of(i64, {-1, -2, -3, -1, -2})), i64, {0, 1, -1, 0, 0});
  CHECK(pow(x, 2.0).dtype() == f32);
  CHECK(pow(x, 2.0).template to_vector<double>() == std::vector<double>{0, 1, 1, 4, 9});
  CHECK(pow(x, of(f32, {2, 2, 2, 2, 2})).dtype() == f32);
  expect_errors({
      {"ValueError: pow: expected an exponent of at least 0 for integers, got -1",
       [&] { pow(x, -1); }},
      {"ValueError: pow: expected an exponent of at least 0 for integers, got -2",
       [&] { pow(of(u8, {1}), -2); }},
      {"ValueError: pow: expected a value of uint8, got 300", [&] { pow(300, of(u8, {1})); }},
  });
}

TEST_CASE_TEMPLATE("integers: sums, products and extrema, as in PyTorch", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  const Maker of{On::device};
  const int64_t most = INT64_MAX;
  for (const DType dtype : {i32, i64, u8}) {
    const Tensor x = of(dtype, {200, 100, 3, 0, 50, 7}).view({2, 3});
    check(cumsum(x, 1).view({6}), i64, {200, 300, 303, 0, 50, 57});
    check(cumsum(x.mT(), 1).view({6}), i64, {200, 200, 100, 150, 3, 10});
    check(sum(x, {0}), i64, {200, 150, 10});
    check(prod(x, {1}), i64, {60000, 0});
    check(amax(x, {1}), dtype, {200, 50});
    check(amin(x, {0}), dtype, {0, 50, 3});
    check(argmax(x, 1), i64, {0, 1});
    check(argmin(x, 0), i64, {1, 1, 0});
    check(max(x, 0).values, dtype, {200, 100, 7});
    check(sort(x, 1).values.view({6}), dtype, {3, 100, 200, 0, 7, 50});
    check(argsort(x, 1).view({6}), i64, {2, 1, 0, 0, 2, 1});
    check(topk(x, 2, 1).values.view({4}), dtype, {200, 100, 50, 7});
    CHECK_THROWS_AS(mean(x), DTypeError);
  }
  // Exact beyond 2^53, and around the end of the range.
  check(cumsum(of(i64, {most, 1, -1, most}), 0), i64, {most, INT64_MIN, most, -2});
  std::vector<int64_t> values, sums;
  int64_t total = 0;
  for (int64_t i = 0; i < 5003; ++i) {
    values.push_back((int64_t{1} << 50) + i);
    sums.push_back(total += values.back());
  }
  check(cumsum(of(i64, values), 0), i64, sums);
}

TEST_CASE_TEMPLATE("integers: matrix products stay in their dtype and wrap, as in PyTorch", On, Cpu,
                   Cuda) {
  if (missing(On::device)) return;
  const Maker of{On::device};
  manual_seed(3);
  const size_t m = 37, k = 70, n = 45;
  for (const DType dtype : {i64, i32, u8}) {
    CAPTURE(name(dtype));
    const int64_t high = dtype == u8 ? 256 : dtype == i32 ? INT32_MAX : INT64_MAX;
    const Numbers a = randint(dtype == u8 ? 0 : -high, high, {37 * 70}).to_vector<int64_t>();
    const Numbers b = randint(dtype == u8 ? 0 : -high, high, {70 * 45}).to_vector<int64_t>();
    const Tensor x = of(dtype, a).view({37, 70}), y = of(dtype, b).view({70, 45});
    const Tensor expected = of(i64, product(a, b, m, k, n)).to(dtype);
    const Numbers wanted = expected.to_vector<int64_t>();
    check(matmul(x, y).flatten(), dtype, wanted);
    check(matmul(x.mT().contiguous().mT(), y.mT().contiguous().mT()).flatten(), dtype, wanted);
    check(matmul(y.mT(), x.mT()).mT().flatten(), dtype, wanted);
    check(einsum("ik,kj->ij", {x, y}).flatten(), dtype, wanted);
    check(linear(x, y.mT()).flatten(), dtype, wanted);
  }
  const Tensor batch = of(i64, {1, 2, 3, 4, 5, 6, 7, 8}).view({2, 2, 2});
  const Tensor one = of(i64, {1, 0, -1, 2}).view({2, 2});
  check(matmul(batch, one).view({8}), i64, {-1, 4, -1, 8, -1, 12, -1, 16});
  check(matmul(one, batch).view({8}), i64, {1, 2, 5, 6, 5, 6, 9, 10});
  check(bmm(batch, batch.mT()).view({8}), i64, {5, 11, 11, 25, 61, 83, 83, 113});
  check(linear(batch, one, of(i64, {10, 20})).view({8}), i64, {11, 23, 13, 25, 15, 27, 17, 29});
  check(baddbmm(one, batch, batch, {.alpha = 2, .beta = 3}).view({8}), i64,
        {17, 20, 27, 50, 137, 156, 179, 218});
  Tensor c = batch.clone();
  check(baddbmm_(c, batch, batch).view({8}), i64, {8, 12, 18, 26, 72, 84, 98, 114});
  check(matmul(zeros({2, 0}, {.dtype = i64, .device = On::device}),
               zeros({0, 2}, {.dtype = i64, .device = On::device}))
            .view({4}),
        i64, {0, 0, 0, 0});
  CHECK(matmul(zeros({0, 2}, {.dtype = u8, .device = On::device}),
               zeros({2, 3}, {.dtype = u8, .device = On::device}))
            .shape() == Shape{0, 3});
  const Tensor bools = of(b8, {1, 0});
  expect_errors({
      {"DTypeError: matmul: expected tensors of one dtype, got int64 and int32",
       [&] { matmul(one, one.to(i32)); }},
      {"DTypeError: einsum: expected a dtype of numbers, got bool",
       [&] {
         einsum("i,i->", {bools, bools});
       }},
      {"ValueError: baddbmm: expected a value of int64, got 0.5",
       [&] { baddbmm(one, batch, batch, {.alpha = 0.5}); }},
  });
}
