// Products of bfloat16 on the CPU, by whichever unit multiplies them. ctest runs this file with
// each unit that the processor has (SASH_BFLOAT16).
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include <sash/core/backend/kernel.h>
#include <sash/core/parallel.h>
#include <sash/ops/kernels/linalg.h>
#include <sash/sash.h>

#include "../support/attention/row_errors.h"
#include "../support/op_inputs.h"
#include "../support/scopes.h"

using namespace sash;
using namespace sash::testing;

namespace {

constexpr double kRounding = 0x1p-8;  // half of a step, relative
constexpr DType kWide = DType::float64;

Tensor numbers(const Shape& shape) { return randn(shape).to(DType::bfloat16); }

/// A matrix that is stored so, or transposed, or with every second column.
Tensor stored(int64_t rows, int64_t cols, int how) {
  if (how == 0) return numbers({rows, cols});
  if (how == 1) return numbers({cols, rows}).mT();
  return numbers({rows, 2 * cols}).slice(1, 1, {}, 2);
}

void multiply(const Tensor& a, const Tensor& b, const Tensor& c, double alpha, double beta) {
  KernelContext context = kernel_context(kCPU);
  kernels::matmul(context, a.tensor_view(), b.tensor_view(), c.tensor_view(), alpha, beta);
}

}  // namespace

TEST_CASE("bfloat16 products: all edges of blocks, however operands are stored") {
  struct Case {
    int64_t m, n, k;
  };
  for (const Case& c : {Case{9, 9, 16},
                        {16, 32, 32},
                        {17, 31, 33},
                        {33, 65, 15},
                        {64, 64, 64},
                        {70, 9, 1100},
                        {300, 290, 31},
                        {12, 600, 513},
                        {600, 12, 95}}) {
    for (int how = 0; how < 9; ++how) {
      CAPTURE(c.m);
      CAPTURE(c.n);
      CAPTURE(c.k);
      CAPTURE(how);
      const Tensor a = stored(c.m, c.k, how / 3), b = stored(c.k, c.n, how % 3);
      const Tensor exact = matmul(a.to(kWide), b.to(kWide));
      CHECK(relative_error(matmul(a, b), exact) < kRounding);
      const Tensor single = empty({c.m, c.n}, {.dtype = DType::float32});
      multiply(a, b, single, 1, 0);
      CHECK(relative_error(single, exact) < 1e-5);
    }
  }
}

TEST_CASE("bfloat16 products: alpha, beta and results that are stored by columns") {
  const Tensor a = numbers({3, 45, 70}), b = numbers({3, 70, 37});
  const Tensor exact = matmul(a.to(kWide), b.to(kWide));
  for (const DType dtype : {DType::bfloat16, DType::float32}) {
    for (const bool by_columns : {false, true}) {
      for (const double beta : {0.0, 1.0, -0.5}) {
        const Tensor c = randn(by_columns ? Shape{3, 37, 45} : Shape{3, 45, 37}).to(dtype);
        const Tensor out = by_columns ? c.mT() : c;
        const Tensor wanted = 2 * exact + beta * out.to(kWide);
        multiply(a, b, out, 2, beta);
        CHECK(relative_error(out, wanted) < (dtype == DType::float32 ? 1e-5 : kRounding));
      }
    }
  }
  const Tensor unread = full({45, 37}, std::numeric_limits<double>::quiet_NaN());
  multiply(a[0], b[0], unread, 1, 0);
  CHECK(relative_error(unread, exact[0]) < 1e-5);
}

TEST_CASE("bfloat16 products: broadcast batches, and heads before rows") {
  const Tensor a = numbers({2, 40, 3, 70}).transpose(1, 2);
  for (const Shape& shape : {Shape{70, 50}, Shape{3, 70, 50}, Shape{2, 1, 70, 50}}) {
    const Tensor b = numbers(shape);
    CHECK(relative_error(matmul(a, b), matmul(a.to(kWide), b.to(kWide))) < kRounding);
  }
}

TEST_CASE("bfloat16 products: a linear layer and its gradients") {
  manual_seed(3);
  const Tensor x = numbers({77, 130}), w = numbers({45, 130}), bias = numbers({45});
  const Tensor g = numbers({77, 45});
  const auto results = [&](DType dtype) {
    std::vector<Tensor> in;
    for (const Tensor& t : {x, w, bias}) in.push_back(t.detach().to(dtype).requires_grad_());
    const Tensor y = linear(in[0], in[1], in[2]);
    std::vector<Tensor> all = grad({y}, in, {g.to(dtype)});
    all.push_back(y.detach());
    return all;
  };
  const std::vector<Tensor> half = results(DType::bfloat16), exact = results(kWide);
  for (size_t i = 0; i < half.size(); ++i) CHECK(relative_error(half[i], exact[i]) < kRounding);
}

TEST_CASE("bfloat16 products: NaN and infinity stay in their row") {
  Tensor a = ones({40, 50}, {.dtype = DType::bfloat16});
  const Tensor b = ones({50, 33}, {.dtype = DType::bfloat16});
  a[3].fill_(std::numeric_limits<double>::quiet_NaN());
  a[20].fill_(std::numeric_limits<double>::infinity());
  const Tensor y = matmul(a, b).to(DType::float32);
  for (int64_t i = 0; i < 40; ++i) {
    const auto found = y[i][32].item<float>();
    CHECK((i == 3 ? std::isnan(found) : found == (i == 20 ? INFINITY : 50)));
  }
}

TEST_CASE("bfloat16 products: the same bits on any number of threads") {
  const int before = num_threads();
  const Tensor a = numbers({530, 1100}), b = numbers({290, 1100}).mT();
  const Tensor first = matmul(a, b);
  for (const int threads : {1, 3, 8}) {
    set_num_threads(threads);
    CHECK(all_same(matmul(a, b), first));
  }
  set_num_threads(before);
}
