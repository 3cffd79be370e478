#include "reduce.h"

#include <cmath>
#include <functional>

#include "../../../core/backend/dispatch.h"
#include "../../../ops/kernels/reduce.h"
#include "../../../tensor/kernels/gradients.h"
#include "../norm/rows.h"
#include "../shape/convert.h"

namespace sash::cpu {
namespace {

struct Sum : Reduction {
  template <class T>
  using Accumulator = std::conditional_t<std::is_integral_v<T>, int64_t, double>;
  template <class T>
  static constexpr bool kFast = std::is_same_v<T, float> || kIsHalf<T>;

  template <class T>
  static Accumulator<T> identity() {
    return 0;
  }
  template <class T, class X>
  static Accumulator<T> run(const X& x) {
    if constexpr (!std::is_same_v<T, float>) return x.template cast<Accumulator<T>>().sum();
    // Sums of up to 512 elements in float32, added in float64: faster, with little rounding error.
    constexpr int64_t kShort = 512;
    double total = 0;
    for (int64_t at = 0; at < x.size(); at += kShort) {
      total += static_cast<double>(x.segment(at, std::min(kShort, x.size() - at)).sum());
    }
    return static_cast<Accumulator<T>>(total);
  }
  template <class A>
  static void merge(A& into, A from) {
    into += from;
  }
  // The same of elements side by side, four vectors at a time; halves in float32.
  template <class T>
  static double run(const T* x, int64_t count) {
    double total = 0;
    for (const T* const end = x + count; x < end;) {
      const T* const stop = x + std::min<int64_t>(512, end - x);
      Lanes<float> sum[4] = {0.F, 0.F, 0.F, 0.F};
      for (; stop - x >= 4 * kLanes; x += 4 * kLanes) {
        for (int k = 0; k < 4; ++k) sum[k] += Lanes<float>(x + k * kLanes);
      }
      for_lanes(stop - x, [&](int64_t i, auto lanes) { sum[0] += load(x + i, lanes); });
      x = stop;
      total += static_cast<double>(sum_of((sum[0] + sum[1]) + (sum[2] + sum[3])));
    }
    return total;
  }
  // The same of halves that do not lie side by side, through a buffer.
  template <class Half>
  static double run(const Half* x, int64_t count, int64_t stride) {
    if (stride == 1) return run(x, count);
    constexpr int64_t kShort = 512;
    float wide[kShort];
    double total = 0;
    for (int64_t at = 0; at < count; at += kShort) {
      const int64_t n = std::min(kShort, count - at);
      for (int64_t i = 0; i < n; ++i) wide[i] = static_cast<float>(x[(at + i) * stride]);
      total += run(wide, n);
    }
    return total;
  }
  // into[i] += the sum of column i of `rows` rows of x, at most 512 of them at a time in float32.
  template <class T>
  static void add_rows(const T* x, int64_t rows, int64_t stride, int64_t columns, double* into) {
    constexpr int64_t kTogether = 8;
    float sum[kColumns];
    for (int64_t done = 0; done < rows;) {
      std::fill_n(sum, columns, 0.0F);
      const int64_t end = std::min(rows, done + 512);
      for (; done + kTogether <= end; done += kTogether) {
        for_lanes(columns, [&](int64_t i, auto lanes) {
          const T* const c = x + done * stride + i;
          const auto row = [&](int64_t k) { return load(c + k * stride, lanes); };
          const Lanes<float> first = (row(0) + row(1)) + (row(2) + row(3));
          const Lanes<float> second = (row(4) + row(5)) + (row(6) + row(7));
          store(sum + i, lanes, load(sum + i, lanes) + (first + second));
        });
      }
      for (; done < end; ++done) {
        for_lanes(columns, [&](int64_t i, auto lanes) {
          store(sum + i, lanes, load(sum + i, lanes) + load(x + done * stride + i, lanes));
        });
      }
      for (int64_t i = 0; i < columns; ++i) into[i] += static_cast<double>(sum[i]);
    }
  }
};

struct Product : Reduction {
  template <class T>
  using Accumulator = double;

  template <class T>
  static double identity() {
    return 1;
  }
  template <class T, class X>
  static double run(const X& x) {
    // Side by side, for vectors; Eigen converts one element at a time.
    constexpr int kSide = 32;
    double part[kSide], total = 1;
    std::fill_n(part, kSide, 1.0);
    int64_t at = 0;
    for (; at + kSide <= x.size(); at += kSide) {
      for (int k = 0; k < kSide; ++k) part[k] *= static_cast<double>(x.coeff(at + k));
    }
    for (; at < x.size(); ++at) total *= static_cast<double>(x.coeff(at));
    for (const double p : part) total *= p;
    return total;
  }
  static void merge(double& into, double from) { into *= from; }
};

// sqrt(sum x^2).
struct Length : Sum {
  template <class T>
  static constexpr bool kFast = false;

  template <class T, class X>
  static double run(const X& x) {
    const double total = Sum::run<T>(x.square());
    if constexpr (std::is_same_v<T, float>) {
      // float32 loses squares that are too large or too small: then of scaled elements.
      const bool held = total > 0x1p-90 && total < std::numeric_limits<double>::infinity();
      const float scale = total > 1 ? 0x1p-75F : 0x1p100F;
      if (!held) return Sum::run<T>((x * scale).square()) / (double{scale} * double{scale});
    }
    return total;
  }
  template <class A, class T>
  static A of(T x) {
    return static_cast<A>(x) * static_cast<A>(x);
  }
  template <class Out>
  static Out finish(double a) {
    return static_cast<Out>(std::sqrt(a));
  }
};

template <int kSign>
struct Extremum : Reduction {
  template <class T>
  using Accumulator = compute_t<T>;

  template <class T>
  static Accumulator<T> identity() {
    using Limits = std::numeric_limits<Accumulator<T>>;
    if constexpr (Limits::has_infinity) {
      return -kSign * Limits::infinity();
    } else {
      return kSign > 0 ? Limits::lowest() : Limits::max();
    }
  }
  // Of halves, a buffer at a time.
  template <class Half>
  static float run(const Half* x, int64_t count, int64_t stride) {
    constexpr int64_t kShort = 512;
    float wide[kShort], best = identity<float>();
    for (int64_t at = 0; at < count; at += kShort) {
      const int64_t n = std::min(kShort, count - at);
      if (stride == 1) {
        widen(x + at, n, wide);
      } else {
        for (int64_t i = 0; i < n; ++i) wide[i] = static_cast<float>(x[(at + i) * stride]);
      }
      merge(best, run<float>(Run<float>(wide, n)));
    }
    return best;
  }
  template <class T, class X>
  static T run(const X& x) {
    if constexpr (kSign > 0) return x.template maxCoeff<Eigen::PropagateNaN>();
    return x.template minCoeff<Eigen::PropagateNaN>();
  }
  template <class A>
  static void merge(A& into, A from) {
    if constexpr (std::is_floating_point_v<A>) {
      if (std::isnan(into)) return;
      if (std::isnan(from)) into = from;
    }
    if (kSign > 0 ? from > into : from < into) into = from;
  }
};

template <class R, class T, class Out>
void reduce_to(KernelContext& context, View x, View y) {
  Out* const to = y.ptr<Out>();
  reduce<R, T>(context, x, y, [to](int64_t at, typename R::template Accumulator<T> a) {
    to[at] = R::template finish<Out>(a);
  });
}

void sum(KernelContext& context, View x, View y) {
  sash::detail::dispatch_over<float, double, float16, bfloat16, int64_t, int32_t, uint8_t, bool>(
      x.dtype, "sum", [&]<class T>(TypeTag<T>) {
        using Out = std::conditional_t<std::is_integral_v<T>, int64_t, T>;
        if constexpr (kIsHalf<T>) {
          if (y.dtype == DType::float32) return reduce_to<Sum, T, float>(context, x, y);
        }
        reduce_to<Sum, T, Out>(context, x, y);
      });
}

template <int kSign>
void extremum(KernelContext& context, View x, View y) {
  dispatch_ordered(x.dtype, kSign > 0 ? "amax" : "amin",
                   [&]<class T>(TypeTag<T>) { reduce_to<Extremum<kSign>, T, T>(context, x, y); });
}

template <class R>
void real(KernelContext& context, View x, View y) {
  dispatch_floating(x.dtype, "reduce",
                    [&]<class T>(TypeTag<T>) { reduce_to<R, T, T>(context, x, y); });
}

// Calls body(x, y, x stride, y stride) for each line along `axis`, in parallel.
template <class T, class Out, class F>
void for_each_line(View x, View y, int axis, F&& body) {
  Axes lines;
  for (int i = 0; i < x.rank(); ++i) {
    if (i != axis) lines.add({x.shape[i], x.strides[i], y.strides[i]});
  }
  parallel_for_each(lines.count(), 8192 / x.shape[axis], [&](int64_t line) {
    const auto [at_x, at_y] = lines.offsets(line);
    body(x.ptr<T>() + at_x, y.ptr<Out>() + at_y, x.strides[axis], y.strides[axis]);
  });
}

// Positions along `axis` of lines that lie side by side along `across`, with unit stride: reads the
// rows in order.
template <int kSign, class T>
void arg_extremum_of_columns(View x, View y, int axis, int across) {
  using Place = std::conditional_t<sizeof(T) == sizeof(int64_t), int64_t, int32_t>;
  Axes outer;
  for (int i = 0; i < x.rank(); ++i) {
    if (i != axis && i != across) outer.add({x.shape[i], x.strides[i], y.strides[i]});
  }
  const int64_t count = x.shape[axis], step = x.strides[axis], width = x.shape[across];
  const int64_t blocks = (width + kColumns - 1) / kColumns;
  parallel_for_each(outer.count() * blocks, 16, [&](int64_t task) {
    const auto [at_x, at_y] = outer.offsets(task / blocks);
    const int64_t first = task % blocks * kColumns, columns = std::min(kColumns, width - first);
    const T* const from = x.ptr<const T>() + at_x + first;
    T best[kColumns];
    Place place[kColumns] = {};
    std::copy_n(from, columns, best);
    for (int64_t row = 1; row < count; ++row) {
      const T* const line = from + row * step;
      for (int64_t i = 0; i < columns; ++i) {
        const T value = line[i], leader = best[i];
        // A leader that is NaN stays.
        const bool wins =
            (kSign > 0 ? value > leader : value < leader) | ((value != value) & (leader == leader));
        best[i] = wins ? value : leader;
        place[i] = wins ? static_cast<Place>(row) : place[i];
      }
    }
    int64_t* const to = y.ptr<int64_t>() + at_y + first * y.strides[across];
    for (int64_t i = 0; i < columns; ++i) to[i * y.strides[across]] = place[i];
  });
}

template <int kSign>
void arg_extremum(KernelContext&, View x, View y, int axis) {
  const int64_t count = x.shape[axis];
  int across = 0;
  while (across < x.rank() && (across == axis || x.strides[across] != 1)) ++across;
  const bool columns = across < x.rank() && x.shape[across] >= kLanes &&
                       count <= std::numeric_limits<int32_t>::max();
  dispatch_ordered(x.dtype, kSign > 0 ? "argmax" : "argmin", [&]<class T>(TypeTag<T>) {
    if constexpr (!kIsHalf<T>) {
      if (columns) return arg_extremum_of_columns<kSign, T>(x, y, axis, across);
    }
    for_each_line<T, int64_t>(
        x, y, axis, [count](const T* from, int64_t* to, int64_t step, int64_t) {
          const auto best = run_of<Extremum<kSign>>(from, count, step);
          const auto is_best = [best](compute_t<T> a) { return best == best ? a == best : a != a; };
          int64_t at = 0;  // of the first that is equal, or NaN too
          while (!is_best(converted<compute_t<T>>(from[at * step]))) ++at;
          *to = at;
        });
  });
}

/// y[i] = x[0] combined with ... x[i] by `Combine`, which is std::plus or std::multiplies.
template <class Combine, class T>
void cumulate_line(const T* x, T* y, int64_t step, int64_t y_step, int64_t count) {
  using A = Sum::Accumulator<T>;
  A total = std::is_same_v<Combine, std::multiplies<>> ? 1 : 0;
  for (int64_t i = 0; i < count; ++i) {
    total = Combine{}(total, converted<A>(x[i * step]));
    y[i * y_step] = converted<T>(total);
  }
}

template <class Combine>
void cumulate(KernelContext&, View x, View y, int axis) {
  if (x.numel() == 0) return;
  const auto as = [&]<class T>(TypeTag<T>) {
    for_each_line<T, T>(x, y, axis, [&](const T* from, T* to, int64_t step, int64_t to_step) {
      cumulate_line<Combine>(from, to, step, to_step, x.shape[axis]);
    });
  };
  sash::detail::dispatch_over<float, double, float16, bfloat16, int64_t>(x.dtype, "cumsum", as);
}

// dx[i] = g times the product of the line's other x. `before` has room for the line.
template <class T>
void prod_line(const T* x, T* dx, int64_t count, int64_t step, double g, double* before) {
  constexpr int64_t kSide = 32;  // sequences of every 32nd element, for vectors
  const auto for_row = [&](int64_t row, auto&& body) {
    const int64_t length = std::min(kSide, count - row);
    for (int64_t i = 0; i < length; ++i) body(i, row + i);
  };
  double product[kSide], others[kSide];  // of each sequence; of all others
  std::fill_n(product, kSide, 1.0);
  for (int64_t row = 0; row < count; row += kSide) {
    for_row(row, [&](int64_t i, int64_t at) {
      before[at] = product[i];
      product[i] *= static_cast<double>(x[at * step]);
    });
  }
  double left = g, right = 1;
  for (int64_t i = 0; i < kSide; ++i) {
    others[i] = left;
    left *= product[i];
  }
  for (int64_t i = kSide - 1; i >= 0; --i) {
    others[i] *= right;
    right *= product[i];
  }
  for (int64_t row = (count - 1) / kSide * kSide; row >= 0; row -= kSide) {
    for_row(row, [&](int64_t i, int64_t at) {
      dx[at * step] = static_cast<T>(before[at] * others[i]);
      others[i] *= static_cast<double>(x[at * step]);
    });
  }
}

void prod_backward(KernelContext& context, View x, View g, View dx, int axis) {
  const int64_t count = x.shape[axis], step = x.strides[axis];
  Axes lines;
  for (int i = 0; i < x.rank(); ++i) {
    if (i != axis) lines.add({x.shape[i], x.strides[i], g.strides[i]});
  }
  dispatch_floating(x.dtype, "prod_backward", [&]<class T>(TypeTag<T>) {
    parallel_for_each(lines.count(), 8192 / count, [&](int64_t line) {
      const Workspace before(context, count * static_cast<int64_t>(sizeof(double)));
      const auto [at, at_g] = lines.offsets(line);
      prod_line(x.ptr<const T>() + at, dx.ptr<T>() + at, count, step,
                static_cast<double>(g.ptr<const T>()[at_g]), before.ptr<double>());
    });
  });
}

}  // namespace

void register_reduce() {
  kernels::sum.set(DeviceType::cpu, sum);
  kernels::prod.set(DeviceType::cpu, real<Product>);
  kernels::prod_backward.set(DeviceType::cpu, prod_backward);
  kernels::length.set(DeviceType::cpu, real<Length>);
  kernels::amax.set(DeviceType::cpu, extremum<1>);
  kernels::amin.set(DeviceType::cpu, extremum<-1>);
  kernels::argmax.set(DeviceType::cpu, arg_extremum<1>);
  kernels::argmin.set(DeviceType::cpu, arg_extremum<-1>);
  kernels::cumsum.set(DeviceType::cpu, cumulate<std::plus<>>);
  kernels::cumprod.set(DeviceType::cpu, cumulate<std::multiplies<>>);
}

}  // namespace sash::cpu
