// Row ops in place: halves and mixed dtypes on both devices, memory, and the tape.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <vector>

#include <sash/sash.h>

#include "../support/compare.h"
#include "../support/devices.h"
#include "../support/expect_error.h"

using namespace sash;
using namespace sash::testing;

namespace {

constexpr DType kFloating[] = {DType::float16, DType::bfloat16, DType::float32, DType::float64};

/// The relative error that a result of `dtype` may have.
double tolerance(DType dtype) {
  switch (dtype) {
    case DType::float16:
      return 1e-3;
    case DType::bfloat16:
      return 8e-3;
    default:
      return dtype == DType::float32 ? 3e-6 : 1e-12;
  }
}

/// Numbers that every floating dtype holds.
Tensor exact(const Shape& shape, Device device) {
  return randn(shape, {.dtype = DType::float32, .device = kCPU})
      .to(DType::bfloat16)
      .to(DType::float64)
      .to(device);
}

using Write = std::function<Tensor(Tensor x, const std::vector<Tensor>& others)>;
using Plain = std::function<Tensor(const Tensor& x, const std::vector<Tensor>& others)>;

/// `write` on x and the others, in each pair of dtypes, against `plain` in float64, with the
/// gradients of both; x and the others are float64.
void check_mixed(const char* what, const Write& write, const Plain& plain, const Tensor& x,
                 const std::vector<Tensor>& others, double factor = 1) {
  const Tensor g = exact(x.shape(), x.device());
  const auto run = [&](const Plain& f, DType dtype, DType other) {
    std::vector<Tensor> variables{x.to(dtype).detach().requires_grad_()};
    for (const Tensor& y : others) variables.push_back(y.to(other).detach().requires_grad_());
    const Tensor y = f(variables[0], {variables.begin() + 1, variables.end()});
    std::vector<Tensor> found = grad({y}, variables, {g.to(dtype)});
    found.push_back(y);
    return found;
  };
  const std::vector<Tensor> expected = run(plain, DType::float64, DType::float64);
  for (const DType dtype : kFloating) {
    for (const DType other : kFloating) {
      CAPTURE(what);
      CAPTURE(name(dtype));
      CAPTURE(name(other));
      const auto in_place = [&](const Tensor& t, const std::vector<Tensor>& more) {
        return write(t.clone(), more);
      };
      const std::vector<Tensor> found = run(in_place, dtype, other);
      for (size_t i = 0; i < found.size(); ++i) {
        const bool of_x = i == 0 || i + 1 == found.size();
        CHECK(found[i].dtype() == (of_x ? dtype : other));
        CHECK(relative_error(found[i], expected[i]) <=
              factor * std::max(tolerance(dtype), tolerance(other)));
      }
      const NoGradGuard no_grad;
      std::vector<Tensor> cast;
      for (const Tensor& y : others) cast.push_back(y.to(other));
      const Tensor y = write(x.to(dtype).clone(), cast);
      CHECK(relative_error(y, expected.back()) <= tolerance(dtype));
    }
  }
}

/// The most bytes that `call` had in use beside what was in use before.
int64_t extra_bytes(Device device, const std::function<void()>& call) {
  call();  // first calls fill caches
  synchronize(device);
  backend(device.type).reset_peak(device);
  const int64_t before = memory_stats(device).current;
  call();
  synchronize(device);
  return memory_stats(device).peak - before;
}

}  // namespace

TEST_CASE_TEMPLATE("in-place rows: every pair of dtypes, values and gradients", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  const Device device = On::device;
  manual_seed(3);
  using Others = std::vector<Tensor>;
  const Tensor x = exact({2, 9, 40}, device), w = exact({40, 40}, device);
  const auto product = [](const Tensor& a, const Others& o) { return matmul(a, o[0]); };
  check_mixed("matmul_", [](const Tensor& a, const Others& o) { return matmul_(a, o[0]); }, product,
              x, {w});
  check_mixed(
      "softmax_", [](const Tensor& a, const Others&) { return softmax_(a); },
      [](const Tensor& a, const Others&) { return softmax(a); }, x, {});
  check_mixed(
      "layer_norm_", [](const Tensor& a, const Others&) { return layer_norm_(a, {40}); },
      [](const Tensor& a, const Others&) { return layer_norm(a, {40}); }, x, {}, 3);
  check_mixed(
      "layer_norm_ with weight and bias",
      [](const Tensor& a, const Others& o) { return layer_norm_(a, {40}, o[0], o[1], 1e-6); },
      [](const Tensor& a, const Others& o) { return layer_norm(a, {40}, o[0], o[1], 1e-6); }, x,
      {exact({40}, device), exact({40}, device)}, 2);
  check_mixed(
      "softmax_backward_",
      [](const Tensor& p, const Others& o) { return softmax_backward_(p, o[0], o[1]); },
      [](const Tensor& p, const Others& o) { return composite::softmax_backward(p, o[0], o[1]); },
      abs(x) * 0.125, {exact({2, 9, 16}, device), exact({2, 40, 16}, device)}, 3);
}

TEST_CASE_TEMPLATE("in-place rows: any number of columns, and rows with nothing to see", On, Cpu,
                   Cuda) {
  if (missing(On::device)) return;
  manual_seed(4);
  for (const int64_t n : {1, 1023, 1024, 1025, 2048, 2049, 5000}) {
    CAPTURE(n);
    const Tensor x = exact({3, n}, On::device).to(DType::float32);
    x.select(0, 1).fill_(-HUGE_VAL);
    const Tensor expected = softmax(x.to(DType::float64));
    const Tensor y = x.clone();
    CHECK(relative_error(softmax_(y), expected) < 3e-6);
    CHECK(all_equal(y.select(0, 1), 0));
    if (n == 1) continue;
    const Tensor z = exact({3, n}, On::device);
    CHECK(relative_error(layer_norm_(z.to(DType::float32), {n}, {}, {}, 1e-6),
                         layer_norm(z, {n}, {}, {}, 1e-6)) < 3e-6);
  }
}

TEST_CASE_TEMPLATE("in-place rows: no second buffer", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  const Device device = On::device;
  const NoGradGuard no_grad;
  // Four blocks of scratch memory; on a card a product may take 32 MiB for itself.
  const int64_t k = 64, rows = (device.is_cpu() ? 1 << 23 : 1 << 25) / k;
  const TensorOptions options{.dtype = DType::float32, .device = device};
  const Tensor x = zeros({rows, k}, options), w = zeros({k, k}, options);
  const int64_t size = x.numel() * 4;
  CHECK(extra_bytes(device, [&] { matmul_(x, w); }) < size * 3 / 4);
  CHECK(extra_bytes(device, [&] { matmul_(x, w.mT()); }) < size * 3 / 4);
  CHECK(extra_bytes(device, [&] { softmax_(x); }) < size / 16);
  CHECK(extra_bytes(device, [&] { layer_norm_(x, {k}); }) < size / 16);
  const Tensor p = x.view({rows / 128, k, 128}), g = zeros({rows / 128, k, 4}, options),
               v = zeros({rows / 128, 128, 4}, options);
  CHECK(extra_bytes(device, [&] { softmax_backward_(p, g, v); }) < size * 3 / 4);
  CHECK(extra_bytes(device, [&] { matmul(x, w); }) >= size);
}

TEST_CASE("in-place rows: a write through a view reaches its base") {
  manual_seed(5);
  const TensorOptions options{.dtype = DType::float64, .device = kCPU, .requires_grad = true};
  const Tensor x = randn({4, 6}, options), w = randn({6, 6}, options);
  const Tensor g = randn({4, 6}, {.dtype = DType::float64});
  const auto same = [&](const Tensor& y, const Tensor& plain) {
    CHECK(largest_difference(y, plain) < 1e-12);
    const std::vector<Tensor> found = grad({y}, {x, w}, {g}, {}, true);
    const std::vector<Tensor> expected = grad({plain}, {x, w}, {g}, {}, true);
    for (size_t i = 0; i < 2; ++i) {
      REQUIRE(found[i].defined() == expected[i].defined());
      if (found[i].defined()) CHECK(largest_difference(found[i], expected[i]) < 1e-12);
    }
  };
  const auto rows = [](const Tensor& t, const Tensor& middle) {
    return cat({t.narrow(0, 0, 1), middle, t.narrow(0, 3, 1)}, 0);
  };
  const Tensor a = x * 2, z = x * 2;
  matmul_(a.narrow(0, 1, 2), w);
  layer_norm_(a.narrow(1, 0, 3), {3});
  const Tensor product = rows(z, matmul(z.narrow(0, 1, 2), w));
  same(a, cat({layer_norm(product.narrow(1, 0, 3), {3}), product.narrow(1, 3, 3)}, 1));
  const Tensor b = x * 2;
  softmax_(b.narrow(0, 1, 2), 0);
  same(b, rows(z, softmax(z.narrow(0, 1, 2), 0)));
}

TEST_CASE("in-place rows: square operands that share memory") {
  const Tensor x = randn({5, 5}, {.dtype = DType::float64, .device = kCPU});
  const Tensor square = matmul(x, x), gram = matmul(x, x.mT());
  CHECK(largest_difference(matmul_(x.clone(), x), square) < 1e-12);
  Tensor y = x.clone();
  CHECK(largest_difference(matmul_(y, y), square) < 1e-12);
  y = x.clone();
  CHECK(largest_difference(matmul_(y, y.mT()), gram) < 1e-12);
}

TEST_CASE("in-place rows: the tape notices writes to what it needs") {
  const TensorOptions variable{.dtype = DType::float32, .device = kCPU, .requires_grad = true};
  const Tensor x = randn({3, 4}, variable), w = randn({4, 4}, variable);
  const auto overwritten = [](const Tensor& y) { return [y] { y.sum().backward(); }; };
  // exp keeps its result, which each op replaces.
  for (const auto& write :
       {std::function<void(Tensor)>([&](const Tensor& y) { matmul_(y, w); }),
        std::function<void(Tensor)>([](const Tensor& y) { softmax_(y); }),
        std::function<void(Tensor)>([](const Tensor& y) { layer_norm_(y, {4}); })}) {
    const Tensor y = exp(x);
    write(y);
    CHECK(thrown_by(overwritten(y)).starts_with("AutogradError: exp: "));
  }
  // softmax_ keeps its own.
  Tensor y = x * 1;
  softmax_(y);
  y.mul_(2);
  CHECK(thrown_by(overwritten(y)).starts_with("AutogradError: softmax_: "));
  // Leaves are written under NoGradGuard alone.
  CHECK(thrown_by([&] { matmul_(x, w); }).starts_with("AutogradError: matmul_: "));
  CHECK(thrown_by([&] { softmax_(x); }).starts_with("AutogradError: softmax_: "));
  CHECK(thrown_by([&] { layer_norm_(x, {4}); }).starts_with("AutogradError: layer_norm_: "));
  CHECK(thrown_by([&] {
          softmax_backward_(x, x, w);
        }).starts_with("AutogradError: softmax_backward_: "));
  const Tensor product = matmul(x, w).detach();
  const NoGradGuard no_grad;
  CHECK(largest_difference(matmul_(x, w), product) < 1e-6);
  CHECK(x.is_leaf());
}

TEST_CASE("in-place rows: errors") {
  const Tensor x = zeros({3, 4}, {.device = kCPU}), row = zeros({4}, {.device = kCPU});
  const Tensor whole = zeros({3, 4}, {.dtype = DType::int64, .device = kCPU});
  expect_errors({
      {"ShapeError: matmul_: expected a [..., K] and a square w [K, K], got [3, 4] and [3, 4]",
       [&] { matmul_(x, x); }},
      {"DTypeError: matmul_: expected a floating dtype, got int64", [&] { matmul_(whole, x); }},
      {"ValueError: softmax_: expected an element of memory for each element of the tensor, got an "
       "expanded tensor of shape [3, 4]",
       [&] {
         softmax_(row.expand({3, 4}));
       }},
      {"ShapeError: layer_norm_: expected an input whose last axes are [3], got [3, 4]",
       [&] { layer_norm_(x, {3}); }},
      {"ShapeError: layer_norm_: expected shape [4], got [3, 4]", [&] { layer_norm_(x, {4}, x); }},
      {"ValueError: layer_norm_: expected normalized axes that lie in memory as one does, got "
       "strides [1, 4] of shape [4, 3]",
       [&] {
         layer_norm_(x.mT(), {4, 3});
       }},
      {"ShapeError: softmax_backward_: expected p [..., L, S], d_out [..., L, D] and v [..., S, "
       "D], got [3, 4], [3, 4] and [3, 4]",
       [&] { softmax_backward_(x, x, x); }},
  });
}
