#include <cmath>
#include <limits>

#include "../../../core/backend/dispatch.h"
#include "../../../ops/kernels/reduce.h"
#include "reduce.h"

namespace sash::cpu {
namespace {

/// Of `count` elements x: the sums of x - pivot and of (x - their mean)^2. The pivot is one of them
/// (0 if that is infinite or NaN), so that equal elements have sums of exactly 0.
struct Spread {
  double count, pivot, sum, squares;
};

double finite_or_zero(double x) { return std::isfinite(x) ? x : 0; }

/// term(0) + ... + term(count - 1), side by side for vectors.
template <class F>
double sum_of_terms(int64_t count, const F& term) {
  constexpr int kSide = 16;
  double part[kSide] = {};
  int64_t at = 0;
  for (; at + kSide <= count; at += kSide) {
    for (int k = 0; k < kSide; ++k) part[k] += term(at + k);
  }
  for (int k = 0; at < count; ++k) part[k] += term(at++);
  for (int half = kSide / 2; half > 0; half /= 2) {
    for (int k = 0; k < half; ++k) part[k] += part[k + half];
  }
  return part[0];
}

/// Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample
/// variances", 1979. In float64: float32 does not hold the squares of large or small elements.
struct Moments : Reduction {
  template <class T>
  using Accumulator = Spread;

  template <class T>
  static Spread identity() {
    return {0, 0, 0, 0};
  }
  template <class T, class X>
  static Spread run(const X& x) {
    const auto at = [&](int64_t i) { return static_cast<double>(x.coeff(i)); };
    const double pivot = finite_or_zero(at(0)), count = static_cast<double>(x.size());
    const double sum = sum_of_terms(x.size(), [&](int64_t i) { return at(i) - pivot; });
    const double mean = sum / count;
    return {count, pivot, sum, sum_of_terms(x.size(), [&](int64_t i) {
              const double apart = (at(i) - pivot) - mean;
              return apart * apart;
            })};
  }
  static void merge(Spread& into, const Spread& from) {
    if (from.count == 0) return;
    if (into.count == 0) return void(into = from);
    const double count = into.count + from.count, between = from.pivot - into.pivot;
    const double apart = between + (from.sum / from.count - into.sum / into.count);
    into.squares += from.squares + apart * apart * (into.count * (from.count / count));
    into.sum += from.sum + from.count * between;
    into.count = count;
  }
  /// Merges the elements i of rows [first, last), `stride` apart, into into[i].
  template <class Line>
  static void add_lines(const Line& line, int64_t first, int64_t last, int64_t stride,
                        int64_t count, Spread* into) {
    constexpr int64_t kBlock = 64;  // rows that stay in the cache for the second pass
    double pivot[kColumns], sum[kColumns], mean[kColumns], squares[kColumns];
    const auto add_blocks = [&](auto step) {
      for (; first < last; first += kBlock) {
        const int64_t end = std::min(last, first + kBlock);
        const auto rows = static_cast<double>(end - first);
        const auto* x = line(first);
        for (int64_t i = 0; i < count; ++i) {
          pivot[i] = finite_or_zero(static_cast<double>(x[i * step]));
          sum[i] = squares[i] = 0;
        }
        for (int64_t r = first; r < end; ++r) {
          x = line(r);
          for (int64_t i = 0; i < count; ++i) sum[i] += static_cast<double>(x[i * step]) - pivot[i];
        }
        for (int64_t i = 0; i < count; ++i) mean[i] = sum[i] / rows;
        for (int64_t r = first; r < end; ++r) {
          x = line(r);
          for (int64_t i = 0; i < count; ++i) {
            const double apart = (static_cast<double>(x[i * step]) - pivot[i]) - mean[i];
            squares[i] += apart * apart;
          }
        }
        for (int64_t i = 0; i < count; ++i) merge(into[i], {rows, pivot[i], sum[i], squares[i]});
      }
    };
    if (stride == 1) return add_blocks(std::integral_constant<int64_t, 1>{});
    add_blocks(stride);
  }
};

void var_mean(KernelContext& context, View x, View var, View mean, double divisor, bool root) {
  dispatch_floating(x.dtype, "var", [&]<class T>(TypeTag<T>) {
    reduce<Moments, T>(context, x, var, [&](int64_t at, const Spread& all) {
      const double none = std::numeric_limits<double>::quiet_NaN();
      const double middle = all.count > 0 ? all.pivot + all.sum / all.count : none;
      const double value = (all.squares + (middle - middle)) / divisor;  // NaN beside infinities
      var.ptr<T>()[at] = static_cast<T>(root ? std::sqrt(value) : value);
      if (mean.data) mean.ptr<T>()[at] = static_cast<T>(middle);
    });
  });
}

}  // namespace

void register_moments() { kernels::var_mean.set(DeviceType::cpu, var_mean); }

}  // namespace sash::cpu
