// Reductions where rounding shows: equal elements, many ties, numbers whose squares no float32
// holds. Against plain float64 loops.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include <sash/sash.h>

#include "../support/compare.h"
#include "../support/devices.h"

using namespace sash;
using namespace sash::testing;

namespace {

constexpr DType kFloating[] = {DType::float32, DType::float64, DType::float16, DType::bfloat16};

using Spread = Tensor (*)(const Tensor&, const Dims&, int64_t, bool);

// Views of the same shape whose elements lie in other orders, and not side by side.
std::vector<Tensor> layouts(const Tensor& x) {
  std::vector<Tensor> all{x, x.mT().contiguous().mT(),
                          x.transpose(0, 2).contiguous().transpose(0, 2)};
  all.push_back(stack({x, x}, -1).select(-1, 1));
  all.push_back(cat({x, x}, -1).narrow(-1, x.size(-1), x.size(-1)));
  return all;
}

// The gradient of f at x for a random cotangent.
template <class F>
Tensor gradient(const F& f, const Tensor& x) {
  const Tensor leaf = x.detach().requires_grad_();
  const Tensor y = f(leaf);
  return grad({y}, {leaf}, {randn(y.shape()).to(y.device(), y.dtype())})[0];
}

// sqrt(sum (x - mean)^2 / (n - 1)) of each row of x, and its gradient for the cotangent 1.
struct RowSpreads {
  std::vector<double> std, gradient;

  explicit RowSpreads(const Tensor& x) {
    const std::vector<double> all = x.to_vector<double>();
    const auto n = static_cast<size_t>(x.size(1));
    for (size_t first = 0; first < all.size(); first += n) {
      double mean = 0, squares = 0;
      for (size_t i = 0; i < n; ++i) mean += all[first + i] / double(n);
      for (size_t i = 0; i < n; ++i) squares += std::pow(all[first + i] - mean, 2);
      std.push_back(std::sqrt(squares / double(n - 1)));
      for (size_t i = 0; i < n; ++i) {
        gradient.push_back((all[first + i] - mean) / (std.back() * double(n - 1)));
      }
    }
  }
};

}  // namespace

TEST_CASE_TEMPLATE("reductions: spreads of equal elements are 0, and so are their gradients", On,
                   Cpu, Cuda) {
  if (missing(On::device)) return;
  manual_seed(1);
  for (const DType dtype : kFloating) {
    CAPTURE(name(dtype));
    for (const Shape& shape :
         {Shape{3, 7, 2}, Shape{5, 40, 33}, Shape{2, 3, 700}, Shape{1, 900, 3}}) {
      CAPTURE(to_string(shape));
      for (int i = 0; i < 4; ++i) {
        const double size = std::pow(10, 3 * i - 5);
        const Tensor constant = (randn({}, {.dtype = DType::float64}) * size).to(On::device, dtype);
        for (const Tensor& x : layouts(constant.expand(shape).contiguous())) {
          for (const Dims& axes : {Dims{0}, Dims{1}, Dims{2}, Dims{0, 1}, Dims{1, 2}, Dims{}}) {
            CAPTURE(to_string(axes));
            for (const Spread spread : {Spread(var), Spread(sash::std)}) {
              const auto f = [&](const Tensor& t) { return spread(t, axes, 0, false); };
              CHECK(all_equal(f(x), 0));
              CHECK(all_equal(gradient(f, x), 0));
            }
          }
        }
      }
    }
  }
}

TEST_CASE_TEMPLATE("reductions: norms of equal elements are their biases", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  manual_seed(2);
  for (const DType dtype : {DType::float32, DType::float64}) {
    for (const int64_t n : {7, 33, 1000}) {
      const TensorOptions options{.dtype = dtype, .device = On::device};
      const Tensor constant = randn({}, options) * 1e4, x = constant.expand({n, 3}).contiguous();
      const Tensor bias = randn({3}, options);
      const Tensor y = batch_norm(x, {}, {}, ones({3}, options), bias, {.training = true});
      CHECK(all_same(y, bias.expand(x.shape())));
      const Tensor z = layer_norm(x.mT().contiguous(), {n});
      if (On::device.is_cpu()) CHECK(all_equal(z, 0));
      // The means of a card's rows are sums of pairs: they round.
      const double rounding = dtype == DType::float64 ? 1e-16 : 1e-7;
      CHECK(amax(abs(z)).template item<double>() <= 8e4 * rounding / std::sqrt(1e-5));
    }
  }
}

TEST_CASE_TEMPLATE("reductions: std is float64's, rounded, for numbers of any size", On, Cpu,
                   Cuda) {
  if (missing(On::device)) return;
  manual_seed(3);
  for (const double size : {1e-35, 1e-30, 1e-20, 1.0, 1e20, 1e30, 1e37}) {
    CAPTURE(size);
    for (const double mean : {0.0, 1.0, 1000.0}) {
      if (mean * size > 1e37) continue;
      const Tensor x =
          ((randn({5, 300}, {.dtype = DType::float64}) + mean) * size).to(DType::float32);
      const RowSpreads expected(x);
      const Tensor here = x.to(On::device);
      const auto rows = [](const Tensor& t) { return sash::std(t, {1}); };
      const auto columns = [](const Tensor& t) { return sash::std(t.mT(), {0}); };
      for (const Tensor& laid : {here, here.mT().contiguous().mT()}) {
        for (const auto& f : {+rows, +columns}) {
          Tensor leaf = laid.detach().requires_grad_();
          const std::vector<double> found = f(leaf).template to_vector<double>();
          for (size_t i = 0; i < found.size(); ++i) {
            CHECK(std::abs(found[i] / expected.std[i] - 1) <= 0x1p-23);
          }
          const Tensor g = grad({f(leaf)}, {leaf}, {ones({5}, {.device = On::device})})[0];
          // The gradient reads the mean rounded to float32.
          CHECK(relative_error(g.template to_vector<double>(), expected.gradient) <
                3e-6 + mean * 0x1p-24);
        }
      }
    }
  }
}

TEST_CASE("reductions: std and var beside infinities and NaN") {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  for (const double odd : {infinity, -infinity, double(NAN)}) {
    for (const int64_t place : {0, 5, 39}) {
      Tensor x = randn({40, 40}, {.dtype = DType::float64});
      x.select(0, place).select(0, place).fill_(odd);
      for (const Dims& axes : {Dims{0}, Dims{1}}) {
        const std::vector<double> found = var(x, axes).to_vector<double>();
        for (int64_t i = 0; i < 40; ++i) CHECK(std::isnan(found[size_t(i)]) == (i == place));
      }
    }
  }
}

TEST_CASE_TEMPLATE("reductions: norms of any order whose powers float32 does not hold", On, Cpu,
                   Cuda) {
  if (missing(On::device)) return;
  manual_seed(4);
  for (const double p : {3.0, 5.5, 1.5, 0.5, -2.0}) {
    for (const double size : {1e-30, 1e-10, 1.0, 1e30}) {
      CAPTURE(p);
      CAPTURE(size);
      const Tensor x = (randn({4, 50}, {.dtype = DType::float64}) * size).to(DType::float32);
      // In float64, of elements near 1, since the norm of c x is c that of x.
      const Tensor near = x.to(DType::float64) / size, y = norm(near, p, {1}) * size;
      const Tensor here = x.to(On::device).detach().requires_grad_();
      const Tensor found = norm(here, p, {1});
      CHECK(relative_error(found, y) < 1e-5);
      Tensor wide = near.detach().requires_grad_();
      const Tensor expected = grad({norm(wide, p, {1}).sum()}, {wide})[0];
      CHECK(relative_error(grad({found.sum()}, {here})[0], expected) < 1e-5);
    }
  }
}

TEST_CASE_TEMPLATE("reductions: gradients of an extremum with more ties than a half counts", On,
                   Cpu, Cuda) {
  if (missing(On::device)) return;
  for (const DType dtype : kFloating) {
    CAPTURE(name(dtype));
    for (const int64_t n : {3, 257, 2049, 70000}) {
      CAPTURE(n);
      const TensorOptions options{.dtype = dtype, .device = On::device};
      const Tensor x = cat({ones({n}, options), zeros({5}, options)}, 0);
      // Each tie gets g / n, rounded once.
      const Tensor share = full({}, 24.0 / double(n), {.dtype = DType::float64}).to(dtype);
      const std::vector<double> expected(size_t(n), share.item<double>());
      const auto check = [&](const Tensor& leaf, const Tensor& y) {
        const Tensor g = grad({y}, {leaf}, {full({}, 24, options)})[0];
        CHECK(g.dtype() == dtype);
        CHECK(g.narrow(0, 0, n).template to_vector<double>() == expected);
        CHECK(all_equal(g.narrow(0, n, 5), 0));
      };
      const Tensor leaf = x.detach().requires_grad_(), opposite = (-x).detach().requires_grad_();
      check(leaf, amax(leaf));
      check(leaf, leaf.amax());
      check(opposite, amin(opposite));
    }
  }
}

TEST_CASE_TEMPLATE("reductions: extrema of columns take the first NaN", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  Tensor x = randn({70, 600}, {.dtype = DType::float32});
  for (const int64_t row : {5, 7}) x[row][3].fill_(std::numeric_limits<double>::quiet_NaN());
  x[0][599].fill_(std::numeric_limits<double>::quiet_NaN());
  for (const Tensor& found : {argmax(x.to(On::device), 0), argmin(x.to(On::device), 0)}) {
    CHECK(found[3].item<int64_t>() == 5);
    CHECK(found[599].item<int64_t>() == 0);
  }
}

TEST_CASE("reductions: gradients of products beside zeros and below the smallest float32") {
  const auto gradient = [](const std::vector<float>& values) {
    const Tensor x = tensor<float>(values).requires_grad_();
    const Tensor y = stack({x, x}, 1);  // lines side by side
    const Tensor whole = grad({prod(x)}, {x})[0];
    CHECK(all_same(grad({prod(y, {0}).sum()}, {x})[0], whole + whole));
    return whole.to_vector<float>();
  };
  CHECK(gradient({2, 0, 3}) == std::vector<float>{0, 6, 0});
  CHECK(gradient({2, 0, 3, 0}) == std::vector<float>{0, 0, 0, 0});
  CHECK(gradient({1e-30F, 1e-30F}) == std::vector<float>{1e-30F, 1e-30F});
  std::vector<float> many(101);
  for (size_t i = 0; i < many.size(); ++i) many[i] = 1 + static_cast<float>(i % 7) / 8;
  const std::vector<float> found = gradient(many);
  for (size_t i = 0; i < many.size(); ++i) {
    double others = 1;
    for (size_t j = 0; j < many.size(); ++j) others *= j == i ? 1.0 : static_cast<double>(many[j]);
    CHECK(found[i] == doctest::Approx(others));
  }
}
