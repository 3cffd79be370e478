// What needs a card: rows, reductions and indices at sizes where CUDA kernels change their ways,
// against the CPU. Skipped without a card, unless SASH_REQUIRE_CUDA is set.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include <sash/core/backend.h>
#include <sash/core/error.h>
#include <sash/sash.h>

#include "../support/cuda_device.h"

using namespace sash;

namespace {

using Tensors = std::vector<Tensor>;
using Function = std::function<Tensor(const Tensors&)>;
using Numbers = std::vector<double>;

/// The result of `f` on `device`, then the gradients of its floating inputs for `cotangent`.
std::vector<Numbers> results(const Function& f, const Tensors& inputs, DType dtype, Device device) {
  Tensors given, wanted;
  for (const Tensor& x : inputs) {
    const bool number = x.dtype() == DType::float64;
    Tensor there = (number ? x.to(dtype) : x).to(device).detach();
    if (number) wanted.push_back(there.requires_grad_());
    given.push_back(there);
  }
  const Tensor y = f(given);
  std::vector<Numbers> all = {y.to_vector<double>()};
  if (!y.requires_grad()) return all;
  manual_seed(7);
  const Tensor cotangent = randn(y.shape(), {.dtype = DType::float64, .device = kCPU});
  for (const Tensor& g : grad({y}, wanted, {cotangent.to(dtype).to(device)})) {
    all.push_back(g.to_vector<double>());
  }
  return all;
}

/// ||a - b|| / ||b||, infinite elements and NaN aside, which must be equal. Errors of up to `step`
/// in each element are forgiven.
double distance(const Numbers& a, const Numbers& b, double step = 0) {
  if (a.size() != b.size()) return HUGE_VAL;
  double error = 0, scale = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    if (!std::isfinite(b[i])) {
      if (a[i] != b[i] && !(std::isnan(a[i]) && std::isnan(b[i]))) return HUGE_VAL;
      continue;
    }
    error += (a[i] - b[i]) * (a[i] - b[i]);
    scale += b[i] * b[i];
  }
  error = std::max(0.0, std::sqrt(error) - step * std::sqrt(static_cast<double>(b.size())));
  return scale == 0 ? error : error / std::sqrt(scale);
}

/// Inputs are float64 (or indices), so small that halves hold them.
void check(const std::string& what, const Function& f, const Tensors& inputs) {
  const std::vector<Numbers> exact = results(f, inputs, DType::float64, kCPU);
  const auto compare = [&](DType dtype, double tolerance, double step = 0) {
    const std::vector<Numbers> found = results(f, inputs, dtype, kCUDA);
    const std::vector<Numbers> again = results(f, inputs, dtype, kCUDA);
    REQUIRE(found.size() == exact.size());
    for (size_t i = 0; i < exact.size(); ++i) {
      INFO(what << ", " << name(dtype) << ", result " << i);
      CHECK(distance(found[i], exact[i], step) <= tolerance);
      CHECK(distance(again[i], found[i]) == 0);
    }
  };
  compare(DType::float64, 1e-12);
  compare(DType::float32, 2e-6);
  compare(DType::float16, 2e-3, 0x1p-24);  // small gradients are subnormal there
  compare(DType::bfloat16, 1.5e-2);
}

Tensor normal(const Shape& shape) {
  return randn(shape, {.dtype = DType::float32, .device = kCPU})
      .to(DType::bfloat16)
      .to(DType::float64);
}
Tensor indices(const Shape& shape, int64_t below) {
  return randint(0, below, shape, {.device = kCPU});
}

}  // namespace

TEST_CASE("cuda rows: softmax and layer norm, held and read again, in vectors and not") {
  if (cuda_missing()) return;
  for (const int64_t n : {1, 31, 64, 1000, 1021, 1024, 1025, 1032, 5000, 5001}) {
    const std::string size = std::to_string(n) + " columns";
    const Tensor x = normal({9, n});
    check("softmax, " + size, [](const Tensors& t) { return softmax(t[0]); }, {x});
    check("log_softmax, " + size, [](const Tensors& t) { return log_softmax(t[0]); }, {x});
    if (n == 1) continue;  // no variance
    const auto norm = [n](const Tensors& t) { return layer_norm(t[0], {n}, t[1], t[2]); };
    check("layer_norm, " + size, norm, {x, normal({n}), normal({n})});
  }
  check("layer_norm of many rows",
        [](const Tensors& t) { return layer_norm(t[0], {40}, t[1], t[2]); },
        {normal({9001, 40}), normal({40}), normal({40})});
}

TEST_CASE("cuda rows: masked and infinite rows") {
  if (cuda_missing()) return;
  for (const int64_t n : {5, 2000}) {
    Tensor x = normal({4, n}).to(DType::float32);
    const double inf = HUGE_VAL;
    x.select(0, 0).fill_(-inf);
    x.select(0, 1).slice(0, 0, n - 1).fill_(-inf);
    x.select(0, 2).slice(0, 1, 2).fill_(std::nan(""));
    x.select(0, 3).slice(0, 2, 3).fill_(inf);
    for (Tensor (*f)(const Tensor&, int64_t) : {softmax, log_softmax}) {
      CHECK(distance(f(x.to(kCUDA), -1).to_vector<double>(), f(x, -1).to_vector<double>()) < 1e-6);
    }
  }
}

TEST_CASE("cuda rows: cross entropy") {
  if (cuda_missing()) return;
  for (const int64_t classes : {10, 1021, 1024, 5000, 50304}) {
    const Tensor x = normal({17, classes});
    Tensor targets = indices({17}, classes);
    targets.slice(0, 3, 5).fill_(-100);
    for (const double smoothing : {0.0, 0.1}) {
      for (const Reduction reduction : {Reduction::none, Reduction::sum, Reduction::mean}) {
        const CrossEntropyOptions options{.label_smoothing = smoothing, .reduction = reduction};
        check("cross_entropy of " + std::to_string(classes),
              [&](const Tensors& t) { return cross_entropy(t[0], t[1], options); }, {x, targets});
      }
    }
  }
}

TEST_CASE("cuda rows: reductions, whole, in parts and by columns") {
  if (cuda_missing()) return;
  const auto of = [](const Shape& shape, const Dims& axes) {
    const std::string what = to_string(shape) + " over " + to_string(axes);
    check("sum of " + what, [axes](const Tensors& t) { return sum(t[0], axes); }, {normal(shape)});
    const Tensor x = normal(shape).to(DType::float32);
    for (Tensor (*f)(const Tensor&, const Dims&, bool) : {amax, amin}) {
      INFO(what);
      CHECK(distance(f(x.to(kCUDA), axes, false).to_vector<double>(),
                     f(x, axes, false).to_vector<double>()) == 0);
    }
  };
  of({100003}, {});
  of({100352}, {0});
  of({3, 40000}, {1});
  of({300, 1000}, {0});
  of({300, 1001}, {0});
  of({300, 1000}, {1});
  of({20000, 4}, {1});
  of({20000, 4}, {0});
  of({3, 70, 1000}, {0, 2});
  of({3, 70, 1000}, {1});
  of({2, 3, 30000}, {0});
  const Tensor x = normal({70, 900});
  check("sum of a transpose", [](const Tensors& t) { return sum(t[0].transpose(0, 1), {1}); }, {x});
  check("sum of a slice", [](const Tensors& t) { return sum(t[0].slice(1, 1), {1}); }, {x});
  check("cumsum", [](const Tensors& t) { return cumsum(t[0], 1); }, {x});
  check("long cumsum", [](const Tensors& t) { return cumsum(t[0], 1); }, {normal({2, 3000})});
  check("cumsum side by side", [](const Tensors& t) { return cumsum(t[0], 0); },
        {normal({40, 17000})});
}

TEST_CASE("cuda rows: argmax takes the first") {
  if (cuda_missing()) return;
  for (const Shape& shape : {Shape{3, 9}, Shape{3, 900}, Shape{3, 9000}, Shape{40, 17000}}) {
    for (const int64_t axis : {0, 1}) {
      const Tensor x = indices(shape, 7);
      CHECK(argmax(x.to(kCUDA), axis).to_vector<int64_t>() == argmax(x, axis).to_vector<int64_t>());
      CHECK(argmin(x.to(kCUDA), axis).to_vector<int64_t>() == argmin(x, axis).to_vector<int64_t>());
    }
  }
}

TEST_CASE("cuda rows: gradients of rows taken by index") {
  if (cuda_missing()) return;
  struct Case {
    int64_t rows, width, count;
  };
  for (const Case& c : {Case{1, 40, 1000}, Case{10, 96, 3000}, Case{10, 33, 65},
                        Case{20000, 8, 500}, Case{50, 300, 31}, Case{5, 4, 0}}) {
    const Tensor index = indices({c.count}, c.rows);
    const std::string what = std::to_string(c.rows) + " rows at " + std::to_string(c.count);
    check("embedding, " + what, [](const Tensors& t) { return embedding(t[0], t[1]); },
          {normal({c.rows, c.width}), index});
    check("index_select, " + what, [](const Tensors& t) { return index_select(t[0], 0, t[1]); },
          {normal({c.rows, c.width}), index});
  }
  const auto scatter = [](const Tensors& t) { return scatter_add(t[0], 1, t[1], t[2]); };
  check("scatter_add", scatter, {normal({3, 37}), indices({3, 500}, 37), normal({3, 500})});
  check("scatter_add, short", scatter, {normal({30, 37}), indices({30, 5}, 37), normal({30, 5})});
}

TEST_CASE("cuda rows: an index out of range is thrown at the next wait, with its op") {
  if (cuda_missing()) return;
  const Device device = kCUDA;
  const Tensor x = randn({4, 6}, {.device = device});
  const Tensor bad = tensor<int64_t>({0, 4, 1, -1}).to(device);
  const Tensor wide = tensor<int64_t>({0, 6, 1, 2}).to(device);
  const auto thrown = [&](const std::function<void()>& f) -> std::string {
    f();
    try {
      synchronize(device);
    } catch (const IndexError& error) {
      CHECK_NOTHROW(synchronize(device));
      return error.what();
    }
    return "nothing";
  };
  const auto begins = [](const std::string& text, const std::string& start) {
    INFO(text);
    CHECK(text.rfind(start, 0) == 0);
  };
  begins(thrown([&] { embedding(x, bad); }), "embedding: expected indices in [0, 4), got ");
  begins(thrown([&] { index_select(x, 0, bad); }), "gather: expected indices in [0, 4), got ");
  begins(thrown([&] { embedding_backward(x, bad, 4); }), "embedding_backward: expected ");
  begins(thrown([&] { cross_entropy(x, wide); }),
         "cross_entropy: expected indices in [0, 6), got 6 at element 1");
  const Tensor along = tensor<int64_t>({-1}).to(device).view({1, 1});
  begins(thrown([&] { scatter_add(x, 1, along, x); }),
         "scatter_add: expected indices in [0, 6), got -1 at element 0");
  const Tensor fine = embedding(x, bad);
  CHECK_THROWS_AS(x.to_vector<float>(), IndexError);
  CHECK_NOTHROW(x.to_vector<float>());
}

TEST_CASE("cuda rows: a mask's bad data are thrown at the next wait, as the CPU throws them") {
  if (cuda_missing()) return;
  const Tensor x = randn({2, 1, 6, 4}, {.device = kCUDA});
  const auto data = [](const std::vector<int32_t>& values) {
    return tensor(values, {static_cast<int64_t>(values.size())}, {.device = kCUDA});
  };
  const auto thrown = [&](const AttentionMask& mask) -> std::string {
    attention(x, x, x, {.mask = mask});
    try {
      synchronize(kCUDA);
    } catch (const ValueError& error) {
      CHECK_NOTHROW(synchronize(kCUDA));
      return error.what();
    }
    return "nothing";
  };
  const auto lengths = [&](int32_t last) { return AttentionMask::key_lengths(data({3, last})); };
  CHECK(thrown(lengths(6)) == "nothing");
  CHECK(thrown(lengths(7)) == "attention: expected key lengths in [0, 6], got 7 for batch 1");
  CHECK(thrown(lengths(-1)) == "attention: expected key lengths in [0, 6], got -1 for batch 1");
  const auto packed = [&](const std::vector<int32_t>& starts) {
    return thrown(AttentionMask::packed(data(starts)));
  };
  const std::string ascend = "attention: expected cu_seqlens that ascend from 0 to the length, 6, ";
  CHECK(packed({0, 2, 2, 6}) == "nothing");
  CHECK(packed({0, 4, 3, 6}) == ascend + "got 3 at 2");
  CHECK(packed({1, 6}) == ascend + "got 1 at 0");
  CHECK(packed({0, 5}) == ascend + "got 5 at 1");
  const Tensor first = data({0, 1, 2, 0, 0, 0}), past = data({1, 2, 9, 6, 6, 6});
  CHECK(thrown(AttentionMask::row_ranges(first, past)) ==
        "attention: expected row ranges in [0, 6], got 9 for query 2");
}
