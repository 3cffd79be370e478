// Products on each device against plain loops, through views of every kind; on a card, halves and
// TF32.
#include <doctest/doctest.h>

#include <vector>

#include <sash/core/backend/backend.h>
#include <sash/core/backend/kernel.h>
#include <sash/core/parallel.h>
#include <sash/ops/kernels/linalg.h>
#include <sash/sash.h>

#include "../support/attention/row_errors.h"
#include "../support/devices.h"
#include "../support/op_inputs.h"
#include "../support/scopes.h"

using namespace sash;
using namespace sash::testing;

namespace {

constexpr DType kHalves[] = {DType::float16, DType::bfloat16};

/// How far a product of float32 or float64 may be from the exact one.
double limit(DType dtype) { return dtype == DType::float32 ? 1e-5 : 1e-13; }

/// The relative error of alpha a b + beta c, in plain loops, if `found` should be that.
double error_of(const Tensor& found, const Tensor& a, const Tensor& b, double alpha = 1,
                const Array& c = Array({}), double beta = 0) {
  const Array product = matmul(to_array(a), to_array(b));
  const Array expected =
      zip(product, c, [&](double x, double y) { return alpha * x + (beta == 0 ? 0 : beta * y); });
  CHECK(found.shape() == expected.shape);
  return relative_error(found.to_vector<double>(), expected.values);
}

/// Random numbers that `half` holds, as float32 on `device`.
Tensor short_numbers(const Shape& shape, DType half, Device device) {
  return randn(shape, {.dtype = DType::float32, .device = device}).to(half).to(DType::float32);
}

/// Half of a step of the halves, relative.
double rounding(DType dtype) { return dtype == DType::float16 ? 0x1p-11 : 0x1p-8; }

}  // namespace

TEST_CASE_TEMPLATE("products: all transposes, broadcast batches", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  struct Case {
    Shape a, b;
  };
  const std::vector<Case> cases = {{{1, 1}, {1, 1}},
                                   {{63, 65}, {65, 64}},
                                   {{130, 17}, {17, 33}},
                                   {{5, 1}, {1, 7}},
                                   {{1, 64}, {64, 1}},
                                   {{3, 16, 8}, {8, 24}},
                                   {{16, 8}, {3, 8, 24}},
                                   {{2, 3, 9, 5}, {3, 5, 11}},
                                   {{2, 1, 9, 5}, {1, 3, 5, 11}},
                                   {{4, 0, 5}, {4, 5, 3}},
                                   {{4, 2, 0}, {4, 0, 3}},
                                   {{2, 3, 4, 65, 8}, {2, 1, 4, 8, 63}},
                                   // Rows a page apart, and more depth than a block has.
                                   {{37, 2048}, {2048, 70}}};
  manual_seed(4);  // a product of one row and one column may nearly cancel
  for (const DType dtype : {DType::float32, DType::float64}) {
    // A view of random elements that are stored so, or transposed.
    const auto stored = [&](Shape shape, bool transposed) {
      if (transposed) std::swap(shape[shape.rank() - 1], shape[shape.rank() - 2]);
      const Tensor x = randn(shape, {.dtype = dtype, .device = On::device});
      return transposed ? x.mT() : x;
    };
    for (const Case& c : cases) {
      for (int swap = 0; swap < 4; ++swap) {
        const Tensor a = stored(c.a, swap & 1), b = stored(c.b, swap & 2);
        const Tensor product = matmul(a, b);
        CHECK_MESSAGE(error_of(product, a, b) < limit(dtype), name(dtype), to_string(c.a),
                      to_string(c.b), swap);
        CHECK(all_same(matmul(a, b), product));
      }
    }
  }
}

TEST_CASE_TEMPLATE("products: views that BLAS cannot read, into any view, with alpha and beta", On,
                   Cpu, Cuda) {
  if (missing(On::device)) return;
  KernelContext context = kernel_context(On::device);
  for (const DType dtype : {DType::float32, DType::float64}) {
    const TensorOptions options{.dtype = dtype, .device = On::device};
    const Tensor a = randn({4, 6, 34, 18}, options), b = randn({6, 18, 21}, options);
    // Every second column, heads before rows, one row repeated, memory that starts at odd places.
    const auto odd = [](const Tensor& x) { return x.slice(-1, 1, {}, 2); };
    const Tensor heads = randn({4, 34, 6, 19}, options).transpose(1, 2).slice(-1, 1);
    const Tensor row = randn({1, 18}, options).expand({34, 18});
    CHECK(error_of(matmul(odd(a), odd(b.mT()).mT()), odd(a), odd(b.mT()).mT()) < limit(dtype));
    CHECK(error_of(matmul(heads, b), heads, b) < limit(dtype));
    CHECK(error_of(matmul(row, b), row, b) < limit(dtype));

    for (const bool by_columns : {false, true}) {
      for (const double beta : {0.0, 0.5}) {
        const Tensor c = randn(by_columns ? Shape{6, 21, 34} : Shape{6, 34, 21}, options);
        const Tensor out = by_columns ? c.mT() : c;
        const auto multiply = [&](const Tensor& x, const Tensor& y, double alpha) {
          const Array before = to_array(out);
          kernels::matmul(context, x.tensor_view(), y.tensor_view(), out.tensor_view(), alpha,
                          beta);
          CHECK(error_of(out, x, y, alpha, before, beta) < limit(dtype));
        };
        multiply(a[0], b, -2);
        multiply(a[0].slice(2, 0, 0), b.slice(1, 0, 0), 1);
      }
    }
  }
}

TEST_CASE_TEMPLATE("products: columns and rows whose elements lie apart", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  manual_seed(8);
  for (const DType dtype : {DType::float32, DType::float64}) {
    const TensorOptions options{.dtype = dtype, .device = On::device};
    for (const int64_t n : {16, 64, 130}) {
      for (const int64_t m : {1, 33, 103, 303, 390, 1003, 2050}) {
        CAPTURE(m);
        CAPTURE(n);
        const Tensor a = randn({m, 1, 3}, options).select(2, 0);
        const Tensor b = randn({1, n, 2}, options).select(2, 0);
        const Tensor want = matmul(a.contiguous(), b.contiguous());
        CHECK(all_same(matmul(a, b), want));
        CHECK(all_same(matmul(b.mT(), a.mT()), want.mT().contiguous()));
        CHECK(all_same(linear(a, b.mT()), want));
        const Tensor c = randn({m, 7}, options), row = randn({1, m, 5}, options).select(2, 1);
        CHECK(relative_error(matmul(row, c), matmul(row.contiguous(), c)) <= limit(dtype));
        CHECK(relative_error(matmul(c.mT(), row.mT()), matmul(c.mT(), row.mT().contiguous())) <=
              limit(dtype));
      }
    }
  }
}

TEST_CASE("cpu products: many tiles, deep products, the same bits on any number of threads") {
  struct Case {
    int64_t m, n, k;
  };
  // Panels that tiles share; chunks of depth; both edges of a tile; panels in place, or too far
  // apart for that; few rows; one row.
  const std::vector<Case> cases = {{1100, 70, 33}, {45, 33, 2100}, {15, 401, 390}, {513, 97, 385},
                                   {260, 130, 40}, {9, 2100, 11},  {97, 64, 1100}, {97, 576, 1100},
                                   {3, 133, 515},  {8, 70, 300},   {1, 133, 515},  {1, 1447, 1450}};
  const int before = num_threads();
  for (const DType dtype : {DType::float32, DType::float64}) {
    for (const Case& c : cases) {
      for (int swap = 0; swap < 4; ++swap) {
        CAPTURE(c.m);
        CAPTURE(swap);
        const auto stored = [&](int64_t rows, int64_t cols, bool transposed) {
          const TensorOptions options{.dtype = dtype};
          return transposed ? randn({cols, rows}, options).mT() : randn({rows, cols}, options);
        };
        const Tensor a = stored(c.m, c.k, swap & 1), b = stored(c.k, c.n, swap & 2);
        const Tensor start = stored(c.m, c.n, false), bias = randn({c.n}, {.dtype = dtype});
        std::vector<Tensor> first;
        for (const int threads : {1, 2, 3, 8}) {
          set_num_threads(threads);
          std::vector<Tensor> results{matmul(a, b), linear(a, b.mT(), bias)};
          for (const double beta : {1.0, 0.5}) {
            results.push_back(baddbmm_(start.clone(), a, b, {.alpha = -2, .beta = beta}));
          }
          if (first.empty()) first = results;
          for (size_t i = 0; i < results.size(); ++i) CHECK(all_same(results[i], first[i]));
        }
        CHECK(error_of(first[0], a, b) < limit(dtype));
        CHECK(relative_error(first[1], first[0] + bias) < limit(dtype));
        CHECK(relative_error(first[2], start - 2 * first[0]) < limit(dtype));
        CHECK(relative_error(first[3], 0.5 * start - 2 * first[0]) < limit(dtype));
      }
    }
  }
  set_num_threads(before);
}

TEST_CASE("cpu products: few rows with halves are the float32 product, rounded once") {
  for (const DType dtype : kHalves) {
    for (const int64_t m : {1, 3, 8, 9}) {
      // Some processors have an instruction for more rows of bfloat16.
      if (m > 8 && dtype == DType::bfloat16) continue;
      CAPTURE(name(dtype));
      CAPTURE(m);
      const Tensor x = randn({m, 515}).to(dtype), bias = randn({133}).to(dtype);
      const Tensor wide = randn({133, 600}).to(dtype);
      for (const Tensor& w : {wide.narrow(1, 0, 515), wide.narrow(1, 3, 515).contiguous(),
                              wide.mT().contiguous().mT().narrow(1, 0, 515)}) {
        const DType f = DType::float32;
        CHECK(all_same(linear(x, w, bias), linear(x.to(f), w.to(f), bias.to(f)).to(dtype)));
        CHECK(all_same(linear(x, w), linear(x.to(f), w.to(f)).to(dtype)));
      }
    }
  }
}

TEST_CASE("cuda products: halves are multiplied in float32 and rounded once") {
  if (missing(kCUDA)) return;
  for (const DType dtype : kHalves) {
    for (const int64_t n : {1, 7, 64, 130}) {
      CAPTURE(name(dtype));
      CAPTURE(n);
      const Tensor x = short_numbers({33, 65}, dtype, kCUDA),
                   w = short_numbers({n, 65}, dtype, kCUDA),
                   bias = short_numbers({n}, dtype, kCUDA);
      const auto half = [dtype](const Tensor& t) { return t.to(dtype); };
      CHECK(relative_error(linear(half(x), half(w), half(bias)), linear(x, w, bias)) <
            rounding(dtype));
      CHECK(relative_error(linear(half(x), half(w)), linear(x, w)) < rounding(dtype));
      CHECK(relative_error(matmul(half(x), half(w).mT()), matmul(x, w.mT())) < rounding(dtype));
    }
  }
}

TEST_CASE("cuda products: float32 is rounded to TF32 only where it is allowed") {
  if (missing(kCUDA)) return;
  const Tensor x = randn({256, 256}, {.dtype = DType::float32, .device = kCUDA});
  const Tensor exact = matmul(x.to(DType::float64), x.to(DType::float64));
  CHECK_FALSE(tf32_allowed());
  CHECK(relative_error(matmul(x, x), exact) < 1e-6);
  {
    const AllowTf32 allow(true);
    const double error = relative_error(matmul(x, x), exact);
    CHECK(error > 1e-5);
    CHECK(error < 1e-3);
  }
  CHECK(relative_error(matmul(x, x), exact) < 1e-6);
}

TEST_CASE_TEMPLATE("attention: halves are computed in float32 and rounded once", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  for (const DType dtype : kHalves) {
    for (const int64_t depth : {5, 64, 72, 128}) {
      CAPTURE(name(dtype));
      CAPTURE(depth);
      const Shape queries{2, 4, 130, depth}, keys{2, 2, 131, depth};
      const auto numbers = [&](const Shape& shape) {
        return short_numbers(shape, dtype, On::device);
      };
      const std::vector<Tensor> inputs{numbers(queries), numbers(keys), numbers(keys)};
      const Tensor cotangent = numbers(queries);
      // The result, then the gradients.
      const auto results = [&](DType type) {
        std::vector<Tensor> x;
        for (const Tensor& input : inputs) x.push_back(input.detach().to(type).requires_grad_());
        manual_seed(5);
        const Tensor y =
            attention(x[0], x[1], x[2], {.mask = AttentionMask::causal(), .dropout = 0.1});
        std::vector<Tensor> all = grad({y}, x, {cotangent.to(type)});
        all.insert(all.begin(), y.detach());
        return all;
      };
      const std::vector<Tensor> half = results(dtype), single = results(DType::float32);
      for (size_t i = 0; i < half.size(); ++i) {
        // The rounded output enters the row sums of the gradients.
        check_rows(std::vector<std::string>({"out", "dq", "dk", "dv"})[i], half[i], single[i],
                   (i == 0 ? 1 : 4) * rounding(dtype));
      }
    }
  }
}
