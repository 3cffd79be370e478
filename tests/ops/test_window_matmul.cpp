// What the table of op cases does not show of windowed products: halves, hidden slots, large sizes,
// errors.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include <sash/sash.h>

#include "../support/compare.h"
#include "../support/devices.h"
#include "../support/expect_error.h"

using namespace sash;
using namespace sash::testing;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Case {
  Shape shape;  // [.., M, N]
  int64_t w;
};

// Results and gradients of both products, for given operands; keys as rows and as columns.
std::vector<Tensor> all_of(const Tensor& q, const Tensor& k, const Tensor& band, const Tensor& g,
                           int64_t w) {
  const auto leaf = [](const Tensor& x) { return x.detach().clone().requires_grad_(); };
  const Tensor x = leaf(q), y = leaf(k), z = leaf(k.mT()), a = leaf(band), v = leaf(k);
  const Tensor by_rows = window_matmul(x, y, w, {.keys_as_rows = true});
  const Tensor by_columns = window_matmul(x, z, w);
  const Tensor sums = unwindow_matmul(a, v, w);
  std::vector<Tensor> all = grad({by_rows, sums}, {x, y, a, v}, {band, g});
  for (const Tensor& gradient : grad({by_columns}, {x, z}, {band})) all.push_back(gradient);
  for (const Tensor& result : {by_rows, by_columns, sums}) all.push_back(result);
  return all;
}

}  // namespace

TEST_CASE_TEMPLATE("window products: halves are float64's, rounded once", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  manual_seed(4);
  // Windows whose rows are aligned, aligned in pairs, and not; ragged ends; several features'
  // tiles.
  const std::vector<Case> cases{{{2, 64, 64}, 8},    {{3, 130, 64}, 16}, {{2, 3, 72, 40}, 5},
                                {{1, 200, 24}, 64},  {{2, 150, 72}, 17}, {{65, 130}, 4},
                                {{2, 96, 7}, 12},    {{3, 33, 16}, 40},  {{1, 128, 600}, 8},
                                {{2, 200, 128}, 16}, {{136, 200}, 72}};
  for (const DType half : {DType::float16, DType::bfloat16}) {
    for (const Case& c : cases) {
      const Shape& shape = c.shape;
      const int64_t w = c.w;
      CAPTURE(to_string(shape));
      CAPTURE(w);
      CAPTURE(std::string(name(half)));
      Shape wide = shape;
      wide[wide.rank() - 1] = 2 * w + 1;
      const auto numbers = [&](const Shape& s) { return randn(s).to(half); };
      const Tensor q = numbers(shape), k = numbers(shape), a = numbers(wide), g = numbers(shape);
      const auto exact = all_of(q.to(DType::float64), k.to(DType::float64), a.to(DType::float64),
                                g.to(DType::float64), w);
      const auto on = [](const Tensor& x) { return x.to(On::device); };
      const auto found = all_of(on(q), on(k), on(a), on(g), w);
      for (size_t i = 0; i < exact.size(); ++i) {
        CAPTURE(i);
        CHECK(found[i].dtype() == half);
        CHECK(relative_error(found[i], exact[i]) < (half == DType::float16 ? 0x1p-11 : 0x1p-9));
      }
    }
  }
}

TEST_CASE_TEMPLATE("window products: hidden slots are filled, never read, and get no gradient", On,
                   Cpu, Cuda) {
  if (missing(On::device)) return;
  manual_seed(5);
  for (const DType dtype : {DType::float32, DType::float16}) {
    for (const Case& c : std::vector<Case>{{{2, 5, 8}, 2}, {{2, 70, 64}, 8}, {{3, 4}, 9}}) {
      const Shape& shape = c.shape;
      const int64_t w = c.w;
      CAPTURE(to_string(shape));
      const TensorOptions options{.device = On::device};
      const Tensor inside = window_mask(shape[shape.rank() - 2], w, On::device);
      const Tensor hidden = logical_not(inside);
      const auto numbers = [&] { return randn(shape, options).to(dtype); };
      const Tensor q = numbers(), k = numbers();
      const Tensor a = window_matmul(q, k, w, {.keys_as_rows = true});
      const Tensor filled = window_matmul(q, k, w, {.keys_as_rows = true, .fill = -kInfinity});
      CHECK(all_same(filled, masked_fill(a, hidden.expand(a.shape()), -kInfinity)));
      // Zeros before a softmax would take weight; -inf does not.
      const Tensor weights = softmax(filled.to(DType::float32));
      CHECK(all_same(weights, masked_fill(weights, hidden.expand(a.shape()), 0)));
      const Tensor poisoned = masked_fill(a, hidden.expand(a.shape()), kNaN);
      const Tensor v = k.clone().requires_grad_(), band = poisoned.clone().requires_grad_();
      const Tensor o = unwindow_matmul(band, v, w);
      CHECK(all_same(o, unwindow_matmul(a, k, w)));
      const std::vector<Tensor> g = grad({o}, {band, v}, {q});
      CHECK(all_same(g[0], masked_fill(g[0], hidden.expand(a.shape()), 0)));
      CHECK(all_same(isnan(g[1]), full(shape, false, {.dtype = DType::boolean})));
    }
  }
}

TEST_CASE_TEMPLATE("window products: what a row does not see does not reach it, NaN neither", On,
                   Cpu, Cuda) {
  if (missing(On::device)) return;
  manual_seed(10);
  for (const DType dtype : {DType::float64, DType::float32, DType::float16, DType::bfloat16}) {
    for (const Case& c : std::vector<Case>{{{2, 8, 3}, 1}, {{2, 200, 24}, 8}, {{1, 150, 72}, 17}}) {
      CAPTURE(name(dtype));
      CAPTURE(to_string(c.shape));
      const int64_t m = c.shape[1], w = c.w, at = m / 2;
      const TensorOptions options{.device = On::device};
      const auto numbers = [&](const Shape& s) { return randn(s, options).to(dtype); };
      Shape wide = c.shape;
      wide[2] = 2 * w + 1;
      const Tensor a = numbers(wide), clean = numbers(c.shape);
      const auto with = [&](double odd) {
        Tensor v = clean.clone();
        v.select(1, at).narrow(1, 0, 2).fill_(odd);
        return v;
      };
      // The average, and the gradients of scores by their keys and by their queries.
      const auto results = [&](const Tensor& v) {
        const Tensor q = v.detach().requires_grad_(), k = v.detach().requires_grad_();
        const Tensor s = window_matmul(q, k, w, {.keys_as_rows = true});
        std::vector<Tensor> all = grad({s}, {q, k}, {a});
        all.push_back(unwindow_matmul(a, v, w));
        all.push_back(local_weighted_average(a.unsqueeze(0), v.unsqueeze(0)).squeeze(0));
        all.push_back(unwindow_matmul(a, v.mT().contiguous().mT(), w));
        return all;
      };
      const std::vector<Tensor> expected = results(with(0));
      for (const double odd : {kInfinity, -kInfinity, kNaN}) {
        const std::vector<Tensor> found = results(with(odd));
        for (size_t i = 0; i < found.size(); ++i) {
          CAPTURE(i);
          const Tensor sees = le(abs(arange(0, m, 1, options) - at), w).unsqueeze(1);
          const Tensor column = lt(arange(0, c.shape[2], 1, options), 2);
          const Tensor reached = logical_and(sees, column).expand(c.shape);
          const Tensor finite = lt(abs(found[i]), kInfinity);
          CHECK(all_same(finite, logical_not(reached)));
          CHECK(largest_difference(masked_fill(found[i], reached, 0),
                                   masked_fill(expected[i], reached, 0)) <
                (dtype == DType::float64   ? 1e-12
                 : dtype == DType::float32 ? 1e-4
                 : dtype == DType::float16 ? 0.02
                                           : 0.2));
        }
      }
    }
  }
}

TEST_CASE_TEMPLATE("window products: w beyond M, and no window", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  manual_seed(6);
  const Tensor q = randn({2, 9, 4}, {.dtype = DType::float64, .device = On::device});
  const Tensor k = randn({2, 9, 4}, {.dtype = DType::float64, .device = On::device});
  const Tensor dense = matmul(q, k.mT());
  const Tensor a = window_matmul(q, k.mT(), 30);
  CHECK(a.shape() == Shape{2, 9, 61});
  for (int64_t i = 0; i < 9; ++i) {
    CHECK(largest_difference(a.select(1, i).narrow(1, 30 - i, 9), dense.select(1, i)) < 1e-14);
  }
  CHECK(largest_difference(unwindow_matmul(a, k, 30), matmul(dense, k)) < 1e-13);
  const Tensor own = window_matmul(q, k.mT(), 0);
  CHECK(largest_difference(own.squeeze(-1), sum(q * k, {-1})) < 1e-14);
}

TEST_CASE("window products: memory is O(M w)") {
  const int64_t m = 65536, w = 2;  // m x m scores would have 16 GiB
  const Tensor q = ones({m, 4}, {.requires_grad = true}), v = ones({m, 4});
  reset_peak_memory(kCPU);
  const int64_t before = memory_stats(kCPU).peak;
  const Tensor o = unwindow_matmul(window_matmul(q, v.mT(), w), v, w);
  const std::vector<Tensor> g = grad({o}, {q}, {v});
  CHECK(o.select(0, m / 2).to_vector<float>() == std::vector<float>(4, 20.0f));
  CHECK(g[0].select(0, m / 2).to_vector<float>() == std::vector<float>(4, 20.0f));
  CHECK(memory_stats(kCPU).peak - before < 8 * m * 4 * 5);
}

TEST_CASE_TEMPLATE("window products: the same bits every time", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  manual_seed(7);
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    const auto numbers = [&](const Shape& shape) {
      return randn(shape, {.device = On::device}).to(dtype);
    };
    const Tensor q = numbers({2, 300, 48}), k = numbers({2, 300, 48});
    const Tensor a = numbers({2, 300, 65}), g = numbers({2, 300, 48});
    const auto once = all_of(q, k, a, g, 32), again = all_of(q, k, a, g, 32);
    for (size_t i = 0; i < once.size(); ++i) CHECK(all_same(once[i], again[i]));
  }
}

TEST_CASE("local products in halves on the CPU, with a mask") {
  manual_seed(8);
  const Tensor q = randn({2, 2, 6, 4}).to(DType::bfloat16), mask = randn({6, 6});
  const Tensor a = local_dot_product(q, q, 3, {.attn_mask = mask.to(DType::bfloat16)});
  const Tensor exact =
      local_dot_product(q.to(DType::float64), q.to(DType::float64), 3,
                        {.attn_mask = mask.to(DType::bfloat16).to(DType::float64)});
  CHECK(a.dtype() == DType::bfloat16);
  CHECK(relative_error(a, exact) < 0x1p-7);
}

TEST_CASE_TEMPLATE("local products: a mask's gradient in halves is rounded once", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  manual_seed(9);
  const int64_t length = 12, heads = 8, batch = 16;
  const auto halves = [&](const Shape& shape) {
    return randn(shape, {.device = On::device}).to(DType::bfloat16);
  };
  const Tensor q = halves({batch, heads, length, 4}), g = halves({batch, heads, length, 3});
  const Tensor mask = halves({length, length});
  const Tensor lengths = full({batch}, 9, {.dtype = DType::int32, .device = On::device});
  for (const Tensor& key_lengths : {Tensor(), lengths}) {
    const auto gradient = [&](DType dtype) {
      const Tensor m = mask.detach().to(dtype).requires_grad_();
      const Tensor a = local_dot_product(q.to(dtype), q.to(dtype), 3,
                                         {.attn_mask = m, .key_lengths = key_lengths});
      return grad({a}, {m}, {g.to(dtype)})[0].to(kCPU);
    };
    const Tensor exact = gradient(DType::float64).to(DType::bfloat16);
    CHECK(all_same(gradient(DType::bfloat16), exact));
  }
}

TEST_CASE("window products: errors") {
  const Tensor q = zeros({2, 5, 3}), k = zeros({2, 3, 5});
  expect_errors({
      {"ShapeError: window_matmul: expected q [..., M, N] and k [..., N, M], got [2, 5, 3] and [2, "
       "5, 3]",
       [&] { window_matmul(q, q, 1); }},
      {"ShapeError: window_matmul: expected q [..., M, N] and k [..., M, N], got [2, 5, 3] and [2, "
       "3, 5]",
       [&] { window_matmul(q, k, 1, {.keys_as_rows = true}); }},
      {"ValueError: window_matmul: expected a window size in [0, 2^29], got -1",
       [&] { window_matmul(q, k, -1); }},
      {"DTypeError: window_matmul: expected a floating dtype, got int64",
       [] {
         const Tensor x = zeros({2, 2}, {.dtype = DType::int64});
         window_matmul(x, x, 1);
       }},
      {"DTypeError: window_matmul: expected bool, got float32",
       [&] {
         window_matmul(q, k, 1, {.mask = zeros({5, 3})});
       }},
      {"ShapeError: unwindow_matmul: expected a [..., M, 2 w + 1] and v [..., M, N], got [2, 5, 4] "
       "and [2, 5, 3]",
       [&] {
         unwindow_matmul(zeros({2, 5, 4}), q, 1);
       }},
      {"ShapeError: local_dot_product: expected 4 axes, got [2, 5, 3]",
       [&] { local_dot_product(q, q, 3); }},
      {"ValueError: local_dot_product: expected a context of at least 1, got 0",
       [] {
         const Tensor x = zeros({1, 1, 2, 2});
         local_dot_product(x, x, 0);
       }},
      {"ShapeError: local_dot_product: expected shape [2, 2], got [2]",
       [] {
         const Tensor x = zeros({1, 1, 2, 2});
         local_dot_product(x, x, 1, {.attn_mask = zeros({2})});
       }},
      {"DTypeError: local_dot_product: expected int32, got int64",
       [] {
         const Tensor x = zeros({1, 1, 2, 2});
         local_dot_product(x, x, 1, {.key_lengths = zeros({1}, {.dtype = DType::int64})});
       }},
      {"ShapeError: local_weighted_average: expected a [N, H, L, c] and v [N, H, L, E], got [1, 1, "
       "3, 2] and [1, 1, 2, 2]",
       [] {
         local_weighted_average(zeros({1, 1, 3, 2}), zeros({1, 1, 2, 2}));
       }},
  });
}
