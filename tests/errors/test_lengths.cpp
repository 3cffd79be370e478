// Reductions and sorts of lengths at which kernels change.
#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include <sash/sash.h>

#include "../support/compare.h"
#include "../support/devices.h"

using namespace sash;
using namespace sash::testing;

namespace {

struct Reduced {
  Shape shape;
  Dims axes;
};

std::vector<Reduced> long_reductions() {
  return {{Shape{2, 40000}, {1}}, {Shape{40000, 3}, {0}}, {Shape{300, 7, 60}, {0, 2}},
          {Shape{70001}, {}},     {Shape{3000, 6}, {1}},  {Shape{2, 5, 4096}, {0, 2}}};
}

void check_close(const Tensor& found, const Tensor& expected, double tolerance) {
  CHECK(found.shape() == expected.shape());
  const Tensor apart = abs(found.to(kCPU).to(DType::float64) - expected);
  CHECK(amax(apart / (abs(expected) + 1e-30)).item<double>() < tolerance);
}

}  // namespace

TEST_CASE_TEMPLATE("lengths: variances, lengths and products of many elements", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  manual_seed(2);
  for (const Reduced& r : long_reductions()) {
    const Tensor wide = randn(r.shape, {.dtype = DType::float64}) + 20;
    for (const DType dtype : {DType::float32, DType::float64}) {
      const double tolerance = dtype == DType::float32 ? 2e-5 : 1e-11;
      const Tensor exact = wide.to(dtype).to(DType::float64), x = exact.to(dtype).to(On::device);
      const Tensor centred = exact - mean(exact, r.axes, true);
      const auto count = static_cast<double>(exact.numel() / mean(exact, r.axes).numel());
      const Tensor squares = sum(square(centred), r.axes);
      check_close(var(x, r.axes), squares / (count - 1), tolerance);
      check_close(sash::std(x, r.axes, 0), sqrt(squares / count), tolerance);
      check_close(norm(x, 2, r.axes), sqrt(sum(square(exact), r.axes)), tolerance);
      const Tensor factors = exp((exact - 20) * 1e-3).to(dtype);
      check_close(prod(factors.to(On::device), r.axes),
                  exp(sum(log(factors.to(DType::float64)), r.axes)), tolerance);
    }
  }
}

TEST_CASE_TEMPLATE("lengths: one element among many decides", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  for (const Reduced& r : long_reductions()) {
    for (const DType dtype : {DType::float64, DType::float32, DType::float16, DType::bfloat16,
                              DType::int64, DType::int32, DType::uint8, DType::boolean}) {
      const Tensor none = zeros(r.shape, {.dtype = dtype, .device = On::device});
      const Tensor full = ones(r.shape, {.dtype = dtype, .device = On::device});
      CHECK(all_equal(any(none, r.axes), 0));
      CHECK(all_equal(all(full, r.axes), 1));
      for (const int64_t place : {int64_t{0}, none.numel() / 3, none.numel() - 1}) {
        const Tensor one = none.clone(), gap = full.clone();
        one.view(-1).narrow(0, place, 1).fill_(1);
        gap.view(-1).narrow(0, place, 1).fill_(0);
        CHECK(any(one, r.axes).to(DType::int64).sum().template item<int64_t>() == 1);
        const Tensor every = all(gap, r.axes);
        CHECK(every.to(DType::int64).sum().template item<int64_t>() == every.numel() - 1);
        if (r.axes.rank() != 1 || dtype == DType::uint8 || dtype == DType::boolean) continue;
        const Tensor at = argmax(one, r.axes[0]), least = argmin(gap, r.axes[0]);
        const int64_t step = r.axes[0] == 0 ? none.numel() / r.shape[0] : 1;
        const int64_t wanted = place / step % r.shape[static_cast<int>(r.axes[0])];
        CHECK(amax(at).template item<int64_t>() == wanted);
        CHECK(amax(least).template item<int64_t>() == wanted);
        CHECK(sum(at).template item<int64_t>() == wanted);
      }
    }
  }
}

TEST_CASE_TEMPLATE("lengths: sorts are stable, whatever the kernel", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  manual_seed(3);
  for (const int64_t length : {1, 31, 128, 129, 1000, 1024, 1025, 4096, 4097}) {
    const Tensor numbers = randint(-300, 300, {3, length});
    for (const DType dtype : {DType::float64, DType::float32, DType::float16, DType::bfloat16,
                              DType::int64, DType::int32}) {
      const Tensor x = (dtype == DType::bfloat16 ? numbers % 100 : numbers).to(dtype);
      const std::vector<double> values = x.template to_vector<double>();
      for (const bool descending : {false, true}) {
        std::vector<int64_t> expected(values.size());
        for (int64_t line = 0; line < 3; ++line) {
          const auto first = expected.begin() + line * length;
          std::iota(first, first + length, 0);
          std::stable_sort(first, first + length, [&](int64_t a, int64_t b) {
            const double p = values[static_cast<size_t>(line * length + a)];
            const double q = values[static_cast<size_t>(line * length + b)];
            return descending ? p > q : p < q;
          });
        }
        const Chosen found = sort(x.to(On::device), 1, descending);
        CHECK(found.indices.template to_vector<int64_t>() == expected);
        CHECK(all_same(found.values.to(kCPU), gather(x, 1, found.indices.to(kCPU))));
        const int64_t half = length / 2 + 1;
        const Chosen first = topk(x.to(On::device), std::min(half, length), 1, descending);
        CHECK(all_same(first.indices.to(kCPU),
                       found.indices.to(kCPU).narrow(1, 0, first.indices.size(1)).contiguous()));
      }
    }
  }
}
