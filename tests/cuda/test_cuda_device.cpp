// What needs a card: the CUDA kernels against the CPU's. Skipped without one, unless
// SASH_REQUIRE_CUDA is set.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include <sash/core/backend.h>
#include <sash/core/error.h>
#include <sash/ops/kernels/linalg.h>
#include <sash/sash.h>
#include <sash/tensor/kernels/gradients.h>
#include <sash/tensor/kernels/memory.h>

#include "../support/cuda_device.h"

using namespace sash;

namespace {

const std::vector<DType> kDTypes = {DType::float32, DType::float64, DType::float16, DType::bfloat16,
                                    DType::int32,   DType::int64,   DType::uint8,   DType::boolean};

/// Numbers that every dtype can hold, in some order, with zeros among them.
Tensor numbers(const Shape& shape, DType dtype) {
  const Tensor x = randint(0, 12, shape, {.device = kCPU});
  return x.to(dtype);
}

/// Bit for bit, with NaN equal to NaN.
bool same(const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape() || a.dtype() != b.dtype()) return false;
  const std::vector<double> x = a.to_vector<double>(), y = b.to_vector<double>();
  for (size_t i = 0; i < x.size(); ++i) {
    if (x[i] != y[i] && !(std::isnan(x[i]) && std::isnan(y[i]))) return false;
  }
  return true;
}

/// ||a - b|| / ||b||.
double distance(const Tensor& a, const Tensor& b) {
  const std::vector<double> x = a.to_vector<double>(), y = b.to_vector<double>();
  double error = 0, scale = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    error += (x.at(i) - y[i]) * (x.at(i) - y[i]);
    scale += y[i] * y[i];
  }
  return scale == 0 ? std::sqrt(error) : std::sqrt(error / scale);
}

/// Views of one tensor that walk its memory in different ways.
std::vector<Tensor> views(const Tensor& x) {
  std::vector<Tensor> all = {x};
  if (x.rank() >= 2) all.push_back(x.transpose(0, -1));
  if (x.rank() >= 1 && x.size(-1) > 3) {
    all.push_back(x.slice(-1, 1));
    all.push_back(x.slice(-1, 0, {}, 2));
    all.push_back(x.slice(0, 0, 1).expand(x.shape()));
  }
  return all;
}

/// Whether several indices share an element.
bool repeats(const Tensor& x) {
  for (int axis = 0; axis < x.rank(); ++axis) {
    if (x.strides()[axis] == 0 && x.shape()[axis] > 1) return true;
  }
  return false;
}

const std::vector<Shape> kShapes = {{}, {0}, {1}, {7}, {65}, {63, 65}, {130, 64}, {3, 1, 17}};

/// Random elements of `shape`, or of its transpose.
Tensor stored(Shape shape, bool transposed, DType dtype) {
  if (transposed) std::swap(shape[shape.rank() - 1], shape[shape.rank() - 2]);
  return randn(shape, {.dtype = dtype, .device = kCPU});
}

}  // namespace

TEST_CASE("cuda device: fill and arange write every element of any view") {
  if (cuda_missing()) return;
  for (const DType dtype : kDTypes) {
    for (const Shape& shape : kShapes) {
      const Tensor here = numbers(shape, dtype);
      const Tensor there = here.to(kCUDA);
      const std::vector<Tensor> a = views(here), b = views(there);
      for (size_t i = 0; i < a.size(); ++i) {
        if (repeats(a[i])) continue;
        KernelContext cpu = kernel_context(kCPU), cuda = kernel_context(kCUDA);
        kernels::fill(cpu, a[i].tensor_view(), static_cast<int>(i + 1));
        kernels::fill(cuda, b[i].tensor_view(), static_cast<int>(i + 1));
        CHECK(same(there, here));
        kernels::arange(cpu, a[i].tensor_view(), 3, 2);
        kernels::arange(cuda, b[i].tensor_view(), 3, 2);
        CHECK_MESSAGE(same(there, here), name(dtype), to_string(shape), i);
      }
    }
  }
  CHECK(same(arange(0.1, 50.0, 0.3, {.device = kCUDA}), arange(0.1, 50.0, 0.3, {.device = kCPU})));
  CHECK(full({3}, 1.5, {.device = kCUDA}).to_vector<float>() == std::vector<float>(3, 1.5f));
}

TEST_CASE("cuda device: copies and casts of any view between any two dtypes") {
  if (cuda_missing()) return;
  for (const DType from : kDTypes) {
    for (const Shape& shape : kShapes) {
      const Tensor here = numbers(shape, from);
      const std::vector<Tensor> a = views(here), b = views(here.to(kCUDA));
      for (size_t i = 0; i < a.size(); ++i) {
        for (const DType to : kDTypes) {
          const Tensor copy = from == to ? b[i].clone() : b[i].to(to);
          CHECK_MESSAGE(same(copy, from == to ? a[i].clone() : a[i].to(to)), name(from), name(to),
                        to_string(shape), i);
        }
      }
    }
  }
}

TEST_CASE("cuda device: casts round, truncate and keep NaN as the CPU's do") {
  if (cuda_missing()) return;
  const double inf = std::numeric_limits<double>::infinity();
  const Tensor x = tensor<double>({0.0, -0.0, 1.0 / 3, -2.9, 65504, 65519.9, 65520, 1e-8, 6e-8, 1e5,
                                   0x1.004p0, 0x1.00cp0, 0x1.01p0, inf, -inf, std::nan("")},
                                  {.device = kCPU});
  for (const DType to : {DType::float32, DType::float16, DType::bfloat16, DType::boolean}) {
    CHECK_MESSAGE(same(x.to(kCUDA).to(to), x.to(to)), name(to));
    CHECK(same(x.to(kCUDA).to(to).to(DType::float64), x.to(to).to(DType::float64)));
  }
  const Tensor finite = x.slice(0, 0, 4);
  CHECK(same(finite.to(kCUDA).to(DType::int32), finite.to(DType::int32)));
  CHECK(same(finite.to(kCUDA).to(DType::int64), finite.to(DType::int64)));
}

TEST_CASE("cuda device: accumulate") {
  if (cuda_missing()) return;
  for (const DType dtype : {DType::float32, DType::float64, DType::float16, DType::bfloat16}) {
    const Tensor x = randn({65, 33}, {.device = kCPU}).to(dtype);
    const Tensor y = randn({33, 65}, {.device = kCPU}).to(dtype);
    const Tensor y_there = y.to(kCUDA);
    KernelContext cpu = kernel_context(kCPU), cuda = kernel_context(kCUDA);
    const TensorView sum = y.mT().tensor_view(), sum_there = y_there.mT().tensor_view();
    kernels::accumulate(cpu, sum, x.tensor_view(), sum);
    kernels::accumulate(cuda, sum_there, x.to(kCUDA).tensor_view(), sum_there);
    CHECK_MESSAGE(same(y_there, y), name(dtype));
  }
}

TEST_CASE("cuda device: add with broadcasting, strides and misaligned memory") {
  if (cuda_missing()) return;
  const std::vector<std::pair<Shape, Shape>> pairs = {{{}, {}},
                                                      {{5}, {}},
                                                      {{64, 128}, {128}},
                                                      {{63, 65}, {63, 1}},
                                                      {{1, 65}, {63, 1}},
                                                      {{2, 1, 64, 8}, {3, 1, 8}},
                                                      {{130, 3}, {130, 3}},
                                                      {{0, 4}, {4}}};
  for (const DType dtype : {DType::float32, DType::float64, DType::int32, DType::int64}) {
    for (const auto& [left, right] : pairs) {
      const Tensor a =
          is_floating(dtype) ? randn(left, {.dtype = dtype, .device = kCPU}) : numbers(left, dtype);
      const Tensor b = numbers(right, dtype);
      CHECK_MESSAGE(same(a.to(kCUDA) + b.to(kCUDA), a + b), name(dtype), to_string(a.shape()));
    }
    const Tensor x = numbers({65, 66}, dtype), there = x.to(kCUDA);
    CHECK(same(there.slice(1, 1) + there.slice(1, 0, 65), x.slice(1, 1) + x.slice(1, 0, 65)));
    CHECK(same(there.slice(1, 0, 65).mT() + there.slice(1, 0, 65),
               x.slice(1, 0, 65).mT() + x.slice(1, 0, 65)));
  }
}

TEST_CASE("cuda device: matmul with every transpose and batch broadcasting") {
  if (cuda_missing()) return;
  struct Case {
    Shape a, b;
  };
  const std::vector<Case> cases = {
      {{1, 1}, {1, 1}},       {{63, 65}, {65, 64}},       {{130, 17}, {17, 33}},
      {{5, 1}, {1, 7}},       {{1, 64}, {64, 1}},         {{3, 16, 8}, {8, 24}},
      {{16, 8}, {3, 8, 24}},  {{2, 3, 9, 5}, {3, 5, 11}}, {{2, 1, 9, 5}, {1, 3, 5, 11}},
      {{4, 0, 5}, {4, 5, 3}}, {{4, 2, 0}, {4, 0, 3}},     {{2, 3, 4, 65, 8}, {2, 1, 4, 8, 63}}};
  for (const DType dtype : {DType::float32, DType::float64}) {
    const double limit = dtype == DType::float32 ? 1e-5 : 1e-13;
    for (const Case& c : cases) {
      for (int swap = 0; swap < 4; ++swap) {
        Tensor a = stored(c.a, swap & 1, dtype), b = stored(c.b, swap & 2, dtype);
        Tensor x = a.to(kCUDA), y = b.to(kCUDA);
        if (swap & 1) a = a.mT(), x = x.mT();
        if (swap & 2) b = b.mT(), y = y.mT();
        const Tensor expected = matmul(a.to(DType::float64), b.to(DType::float64));
        const Tensor product = matmul(x, y);
        CHECK_MESSAGE(distance(product, expected) < limit, name(dtype), to_string(c.a),
                      to_string(c.b), swap);
        CHECK(same(matmul(x, y), product));
      }
    }
  }
}

TEST_CASE(
    "cuda device: matmul of views that cuBLAS cannot read, into any view, with alpha and beta") {
  if (cuda_missing()) return;
  for (const DType dtype : {DType::float32, DType::float64}) {
    const double limit = dtype == DType::float32 ? 1e-5 : 1e-13;
    const TensorOptions options{.dtype = dtype, .device = kCPU};
    const Tensor a = randn({4, 6, 34, 18}, options), b = randn({6, 18, 21}, options);
    // Every second column, heads before rows, one row repeated, memory that starts at odd places.
    const auto odd = [](const Tensor& x) { return x.slice(-1, 1, {}, 2); };
    const auto heads = [](const Tensor& x) { return x.transpose(1, 2).slice(-1, 1); };
    CHECK(distance(matmul(odd(a.to(kCUDA)), odd(b.to(kCUDA).mT()).mT()),
                   matmul(odd(a), odd(b.mT()).mT())) < limit);
    const Tensor packed = randn({4, 34, 6, 19}, options);
    CHECK(distance(matmul(heads(packed.to(kCUDA)), b.to(kCUDA)), matmul(heads(packed), b)) < limit);
    const Tensor row = randn({1, 18}, options);
    CHECK(distance(matmul(row.to(kCUDA).expand({34, 18}), b.to(kCUDA)),
                   matmul(row.expand({34, 18}), b)) < limit);

    for (const bool by_columns : {false, true}) {
      for (const double beta : {0.0, 0.5}) {
        const auto out = [&](const Tensor& c) { return by_columns ? c.mT() : c; };
        const Tensor c = randn(by_columns ? Shape{6, 21, 34} : Shape{6, 34, 21}, options);
        const Tensor there = c.to(kCUDA), x = a[0].to(kCUDA), y = b.to(kCUDA);
        KernelContext cpu = kernel_context(kCPU), cuda = kernel_context(kCUDA);
        kernels::matmul(cpu, a[0].tensor_view(), b.tensor_view(), out(c).tensor_view(), -2, beta);
        kernels::matmul(cuda, x.tensor_view(), y.tensor_view(), out(there).tensor_view(), -2, beta);
        CHECK(distance(there, c) < limit);
        const Tensor none = x.slice(2, 0, 0), nil = y.slice(1, 0, 0);
        kernels::matmul(cuda, none.tensor_view(), nil.tensor_view(), out(there).tensor_view(), 1,
                        beta);
        CHECK(distance(there, c.to(DType::float64) * beta) < limit);
      }
    }
  }
}
