// Kernels over any strides, on each device, against plain loops: fill, arange, copies and casts,
// accumulate, add.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <sash/core/backend/kernel.h>
#include <sash/sash.h>
#include <sash/tensor/kernels/gradients.h>
#include <sash/tensor/kernels/memory.h>

#include "../support/devices.h"
#include "../support/op_inputs.h"

using namespace sash;
using namespace sash::testing;

namespace {

using Numbers = std::vector<double>;

const std::vector<DType> kDTypes = {DType::float32, DType::float64, DType::float16, DType::bfloat16,
                                    DType::int32,   DType::int64,   DType::uint8,   DType::boolean};
const std::vector<Shape> kShapes = {{}, {0}, {1}, {7}, {65}, {63, 65}, {130, 64}, {3, 1, 17}};

/// Numbers that every dtype but boolean holds, in some order, with zeros among them.
Tensor numbers(const Shape& shape, DType dtype) {
  return randint(0, 12, shape, {.device = kCPU}).to(dtype);
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

/// For each of `views`, where the elements of the whole tensor are that it shows.
std::vector<std::vector<int64_t>> places(const Shape& shape) {
  const Tensor all = arange(0, numel(shape), 1, {.device = kCPU}).view(shape);
  std::vector<std::vector<int64_t>> found;
  for (const Tensor& view : views(all)) found.push_back(view.to_vector<int64_t>());
  return found;
}

/// Whether several indices share an element.
bool repeats(const Tensor& x) {
  for (int axis = 0; axis < x.rank(); ++axis) {
    if (x.strides()[axis] == 0 && x.shape()[axis] > 1) return true;
  }
  return false;
}

/// Equal, NaN to NaN.
bool equal(const Tensor& found, const Numbers& expected) {
  const Numbers x = found.to_vector<double>();
  if (x.size() != expected.size()) return false;
  for (size_t i = 0; i < x.size(); ++i) {
    if (x[i] != expected[i] && !(std::isnan(x[i]) && std::isnan(expected[i]))) return false;
  }
  return true;
}

}  // namespace

TEST_CASE_TEMPLATE("strides: fill and arange write the elements of a view, and no others", On, Cpu,
                   Cuda) {
  const Device device = On::device;
  if (missing(device)) return;
  KernelContext context = kernel_context(device);
  for (const DType dtype : kDTypes) {
    for (const Shape& shape : kShapes) {
      const Tensor x = numbers(shape, dtype).to(device).clone();
      Numbers expected = x.to_vector<double>();
      const std::vector<Tensor> all = views(x);
      for (size_t i = 0; i < all.size(); ++i) {
        if (repeats(all[i])) continue;
        const std::vector<int64_t> at = places(shape)[i];
        const auto expect = [&](double first, double step) {
          for (size_t k = 0; k < at.size(); ++k) {
            const double number = first + step * static_cast<double>(k);
            expected[static_cast<size_t>(at[k])] =
                rounded(dtype == DType::uint8 ? std::fmod(number, 256) : number, dtype);
          }
        };
        kernels::fill(context, all[i].tensor_view(), static_cast<int>(i + 1));
        expect(static_cast<double>(i + 1), 0);
        CHECK_MESSAGE(equal(x, expected), name(dtype), to_string(shape), i);
        kernels::arange(context, all[i].tensor_view(), 3, 2);
        expect(3, 2);
        CHECK_MESSAGE(equal(x, expected), name(dtype), to_string(shape), i);
      }
    }
  }
  const Tensor counted = arange(0.1, 50.0, 0.3, {.dtype = DType::float32, .device = device});
  CHECK(counted.to_vector<float>() ==
        arange(0.1, 50.0, 0.3, {.dtype = DType::float32, .device = kCPU}).to_vector<float>());
  CHECK(full({3}, 1.5, {.device = device}).to_vector<float>() == std::vector<float>(3, 1.5F));
}

TEST_CASE_TEMPLATE("strides: copies and casts of any view between any two dtypes", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  for (const DType from : kDTypes) {
    for (const Shape& shape : kShapes) {
      const Tensor here = numbers(shape, from);
      const Numbers values = here.to_vector<double>();
      const std::vector<std::vector<int64_t>> at = places(shape);
      const std::vector<Tensor> all = views(here.to(On::device));
      for (size_t i = 0; i < all.size(); ++i) {
        for (const DType to : kDTypes) {
          Numbers expected;
          for (const int64_t place : at[i]) {
            expected.push_back(rounded(values[static_cast<size_t>(place)], to));
          }
          const Tensor copy = from == to ? all[i].clone() : all[i].to(to);
          CHECK(copy.shape() == all[i].shape());
          CHECK(copy.dtype() == to);
          CHECK_MESSAGE(equal(copy, expected), name(from), name(to), to_string(shape), i);
        }
      }
    }
  }
}

TEST_CASE_TEMPLATE("strides: casts round to even, truncate and keep NaN", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  const double inf = std::numeric_limits<double>::infinity();
  const Numbers numbers{0.0,  -0.0, 1.0 / 3,   -2.9,      65504,    65519.9, 65520, 1e-8,
                        6e-8, 1e5,  0x1.004p0, 0x1.00cp0, 0x1.01p0, inf,     -inf,  std::nan("")};
  const Tensor x = tensor(numbers, {16}, {.device = On::device});
  for (const DType to : {DType::float32, DType::float16, DType::bfloat16, DType::boolean}) {
    Numbers expected;
    for (const double value : numbers) expected.push_back(rounded(value, to));
    CHECK_MESSAGE(equal(x.to(to), expected), name(to));
    CHECK(equal(x.to(to).to(DType::float64), expected));
  }
  const Tensor finite = x.slice(0, 0, 4);
  for (const DType to : {DType::int32, DType::int64}) CHECK(equal(finite.to(to), {0, 0, 0, -2}));
}

TEST_CASE_TEMPLATE("strides: a tensor is moved and cast at once, and its gradient back", On, Cpu,
                   Cuda) {
  if (missing(On::device)) return;
  for (const auto& [from, to] : {std::pair{DType::float32, DType::bfloat16},
                                 {DType::float16, DType::float64},
                                 {DType::float32, DType::float32}}) {
    const Tensor x =
        tensor({0.5, -1.25, 3.0}, {.dtype = from, .device = kCPU, .requires_grad = true});
    const Tensor y = x.to(On::device, to);
    CHECK(y.device() == On::device);
    CHECK(y.dtype() == to);
    CHECK(y.to_vector<double>() == std::vector<double>{0.5, -1.25, 3});
    (y * y).sum().backward();
    CHECK(x.grad().device() == kCPU);
    CHECK(x.grad().dtype() == from);
    CHECK(x.grad().to_vector<double>() == std::vector<double>{1, -2.5, 6});
  }
}

TEST_CASE_TEMPLATE("strides: accumulate", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  KernelContext context = kernel_context(On::device);
  for (const DType dtype : {DType::float32, DType::float64, DType::float16, DType::bfloat16}) {
    const Tensor x = randn({65, 33}, {.device = kCPU}).to(dtype);
    const Tensor y = randn({33, 65}, {.device = kCPU}).to(dtype).to(On::device).clone();
    Numbers expected = (y.mT()).to_vector<double>();
    const Numbers added = x.to_vector<double>();
    for (size_t i = 0; i < expected.size(); ++i) {
      expected[i] = rounded(expected[i] + added[i], dtype);
    }
    const TensorView sum = y.mT().tensor_view();
    kernels::accumulate(context, sum, x.to(On::device).tensor_view(), sum);
    CHECK_MESSAGE(equal(y.mT(), expected), name(dtype));
  }
}

TEST_CASE_TEMPLATE("strides: add with broadcasting and misaligned memory", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  const std::vector<std::pair<Shape, Shape>> pairs = {{{}, {}},
                                                      {{5}, {}},
                                                      {{64, 128}, {128}},
                                                      {{63, 65}, {63, 1}},
                                                      {{1, 65}, {63, 1}},
                                                      {{2, 1, 64, 8}, {3, 1, 8}},
                                                      {{130, 3}, {130, 3}},
                                                      {{0, 4}, {4}}};
  for (const DType dtype : {DType::float32, DType::float64, DType::int32, DType::int64}) {
    const auto check = [&](const Tensor& a, const Tensor& b, const Tensor& sum) {
      const Array expected =
          zip(to_array(a), to_array(b), [&](double x, double y) { return rounded(x + y, dtype); });
      CHECK(sum.shape() == expected.shape);
      CHECK_MESSAGE(equal(sum, expected.values), name(dtype), to_string(sum.shape()));
    };
    for (const auto& [left, right] : pairs) {
      const Tensor a =
          is_floating(dtype) ? randn(left, {.dtype = dtype, .device = kCPU}) : numbers(left, dtype);
      const Tensor b = numbers(right, dtype);
      check(a, b, a.to(On::device) + b.to(On::device));
    }
    const Tensor x = numbers({65, 66}, dtype).to(On::device);
    const Tensor first = x.slice(1, 0, 65), second = x.slice(1, 1);
    check(second, first, second + first);
    check(first.mT(), first, first.mT() + first);
  }
}
