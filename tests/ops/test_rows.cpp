// Rows, reductions and indices at sizes where kernels change their ways, against float64 on the
// CPU; twice, with the same bits.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include <sash/sash.h>

#include "../support/compare.h"
#include "../support/devices.h"

using namespace sash;
using namespace sash::testing;

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

/// The relative error, where up to `step` in each element is forgiven.
double error_of(const Numbers& found, const Numbers& exact, double step) {
  const double error = relative_error(found, exact);
  if (step == 0 || !std::isfinite(error)) return error;
  double scale = 0;
  for (const double x : exact) scale += std::isfinite(x) ? x * x : 0;
  const double forgiven = step * std::sqrt(static_cast<double>(exact.size()));
  return std::max(0.0, error - (scale == 0 ? forgiven : forgiven / std::sqrt(scale)));
}

/// Checks ops on one device; their inputs are float64 (or indices), so small that halves hold them.
struct Rows {
  Device device;

  void operator()(const std::string& what, const Function& f, const Tensors& inputs) const {
    const std::vector<Numbers> exact = results(f, inputs, DType::float64, kCPU);
    const auto compare = [&](DType dtype, double tolerance, double step = 0) {
      const std::vector<Numbers> found = results(f, inputs, dtype, device);
      const std::vector<Numbers> again = results(f, inputs, dtype, device);
      REQUIRE(found.size() == exact.size());
      for (size_t i = 0; i < exact.size(); ++i) {
        INFO(what << ", " << name(dtype) << ", result " << i);
        CHECK(error_of(found[i], exact[i], step) <= tolerance);
        CHECK(relative_error(again[i], found[i]) == 0);
      }
    };
    compare(DType::float64, 1e-12);
    compare(DType::float32, 2e-6);
    if (device.is_cpu()) return;             // has no arithmetic of halves
    compare(DType::float16, 2e-3, 0x1p-24);  // small gradients are subnormal there
    compare(DType::bfloat16, 1.5e-2);
  }
};

Tensor normal(const Shape& shape) {
  return randn(shape, {.dtype = DType::float32, .device = kCPU})
      .to(DType::bfloat16)
      .to(DType::float64);
}
Tensor indices(const Shape& shape, int64_t below) {
  return randint(0, below, shape, {.device = kCPU});
}

}  // namespace

TEST_CASE_TEMPLATE("rows: softmax and layer norm, short and long rows, vectorised and not", On, Cpu,
                   Cuda) {
  const Rows check{On::device};
  if (missing(On::device)) return;
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

TEST_CASE_TEMPLATE("rows: softmax of masked and infinite rows", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  const double inf = HUGE_VAL, nan = std::nan("");
  for (const int64_t n : {5, 2000}) {
    const auto columns = static_cast<size_t>(n);
    const Tensor x = normal({4, n}).to(DType::float32);
    x.select(0, 0).fill_(-inf);
    x.select(0, 1).slice(0, 0, n - 1).fill_(-inf);
    x.select(0, 2).slice(0, 1, 2).fill_(nan);
    x.select(0, 3).slice(0, 2, 3).fill_(inf);
    for (const bool log : {false, true}) {
      Numbers expected(2 * columns, log ? -inf : 0);
      expected.back() = log ? 0 : 1;
      expected.resize(4 * columns, nan);
      const Tensor y = (log ? log_softmax : softmax)(x.to(On::device), -1);
      CHECK(relative_error(y.to_vector<double>(), expected) < 1e-6);
    }
  }
}

TEST_CASE_TEMPLATE("rows: cross entropy", On, Cpu, Cuda) {
  const Rows check{On::device};
  if (missing(On::device)) return;
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

TEST_CASE_TEMPLATE("rows: reductions over all, some and leading axes", On, Cpu, Cuda) {
  const Rows check{On::device};
  if (missing(On::device)) return;
  const auto of = [&](const Shape& shape, const Dims& axes) {
    const std::string what = to_string(shape) + " over " + to_string(axes);
    check("sum of " + what, [axes](const Tensors& t) { return sum(t[0], axes); }, {normal(shape)});
    const Tensor x = normal(shape).to(DType::float32);
    for (Tensor (*f)(const Tensor&, const Dims&, bool) : {amax, amin}) {
      INFO(what);
      const Tensor exact = f(x.to(DType::float64), axes, false);
      CHECK(relative_error(f(x.to(On::device), axes, false), exact) == 0);
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
  of({64, 4104}, {0});
  of({65, 4104}, {0});
  of({40, 5001}, {0});
  const Tensor x = normal({70, 900});
  check("sum of a transpose", [](const Tensors& t) { return sum(t[0].transpose(0, 1), {1}); }, {x});
  check("sum of a slice", [](const Tensors& t) { return sum(t[0].slice(1, 1), {1}); }, {x});
  check("cumsum", [](const Tensors& t) { return cumsum(t[0], 1); }, {x});
  check("long cumsum", [](const Tensors& t) { return cumsum(t[0], 1); }, {normal({2, 3000})});
  check("cumsum side by side", [](const Tensors& t) { return cumsum(t[0], 0); },
        {normal({40, 17000})});
}

TEST_CASE_TEMPLATE("rows: argmax takes the first", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  for (const Shape& shape : {Shape{3, 9}, Shape{3, 900}, Shape{3, 9000}, Shape{40, 17000}}) {
    for (const int axis : {0, 1}) {
      const Tensor x = indices(shape, 7), there = x.to(On::device);
      const Numbers values = x.to_vector<double>();
      const int64_t lines = shape[1 - axis], n = shape[axis];
      std::vector<int64_t> greatest, least;
      for (int64_t line = 0; line < lines; ++line) {
        const auto at = [&](int64_t i) {
          return values[static_cast<size_t>(axis == 0 ? i * lines + line : line * n + i)];
        };
        int64_t most = 0, fewest = 0;
        for (int64_t i = 1; i < n; ++i) {
          if (at(i) > at(most)) most = i;
          if (at(i) < at(fewest)) fewest = i;
        }
        greatest.push_back(most);
        least.push_back(fewest);
      }
      CHECK(argmax(there, axis).to_vector<int64_t>() == greatest);
      CHECK(argmin(there, axis).to_vector<int64_t>() == least);
    }
  }
}

TEST_CASE_TEMPLATE("rows: gradients of rows taken by index", On, Cpu, Cuda) {
  const Rows check{On::device};
  if (missing(On::device)) return;
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
