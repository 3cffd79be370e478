#include "../../../ops/kernels/reduce.h"
#include "../../../tensor/kernels/gradients.h"

#include <Eigen/Core>

#include <cmath>
#include <limits>

#include "../../../core/backend/dispatch.h"
#include "../../../core/parallel.h"
#include "../norm/rows.h"
#include "../shape/in_float.h"

namespace sash::cpu {
namespace {

template <class T>
using Run = Eigen::Map<const Eigen::Array<T, Eigen::Dynamic, 1>>;
template <class T>
using StridedRun = Eigen::Map<const Eigen::Array<T, Eigen::Dynamic, 1>, Eigen::Unaligned,
                              Eigen::InnerStride<Eigen::Dynamic>>;

// Columns that a task of `reduce_rows` has at most.
constexpr int64_t kColumns = 512;

// A reduction has an accumulator type, its identity, `run` (of a vector of elements), `of` (of one
// element), `merge` (adds one accumulator to another) and `finish` (makes the result).
struct Reduction {
  template <class A, class T>
  static A of(T x) {
    if constexpr (kIsHalf<T>)
      return static_cast<A>(static_cast<float>(x));
    else
      return static_cast<A>(x);
  }
  template <class Out, class A>
  static Out finish(A a) {
    if constexpr (kIsHalf<Out>)
      return Out(static_cast<float>(a));
    else
      return static_cast<Out>(a);
  }
};

struct Sum : Reduction {
  template <class T>
  using Accumulator = std::conditional_t<std::is_integral_v<T>, int64_t, double>;

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
  using Accumulator = T;

  template <class T>
  static T identity() {
    if constexpr (std::numeric_limits<T>::has_infinity) {
      return static_cast<T>(-kSign) * std::numeric_limits<T>::infinity();
    } else {
      return kSign > 0 ? std::numeric_limits<T>::lowest() : std::numeric_limits<T>::max();
    }
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

template <class R, class T>
auto run_of(const T* x, int64_t count, int64_t stride) {
  if constexpr (kIsHalf<T>) {
    return R::run(x, count, stride);
  } else {
    if constexpr (std::is_same_v<R, Sum> && std::is_same_v<T, float>) {
      if (stride == 1) return R::run(x, count);
    }
    if (stride == 1) return R::template run<T>(Run<T>(x, count));
    return R::template run<T>(StridedRun<T>(x, count, Eigen::InnerStride<Eigen::Dynamic>(stride)));
  }
}

struct Axis {
  int64_t extent;
  int64_t x_stride;
  int64_t y_stride;
};

// A group of axes, in descending order of their stride in x.
struct Axes {
  Axis axis[kMaxRank];
  int rank = 0;

  int64_t count() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= axis[i].extent;
    return n;
  }
  void add(Axis a) {
    int at = rank++;
    for (; at > 0 && axis[at - 1].x_stride < a.x_stride; --at) axis[at] = axis[at - 1];
    axis[at] = a;
  }
  Axis pop() { return rank > 0 ? axis[--rank] : Axis{1, 1, 1}; }
  // Merges neighbours that are one axis in x and in y.
  void merge() {
    int last = 0;
    for (int i = 1; i < rank; ++i) {
      const Axis inner = axis[i];
      Axis& outer = axis[last];
      if (outer.x_stride == inner.x_stride * inner.extent &&
          outer.y_stride == inner.y_stride * inner.extent) {
        outer = {outer.extent * inner.extent, inner.x_stride, inner.y_stride};
      } else {
        axis[++last] = inner;
      }
    }
    if (rank > 0) rank = last + 1;
  }
  // Offsets in x and y of the row-major index `index`.
  std::pair<int64_t, int64_t> offsets(int64_t index) const {
    int64_t x = 0, y = 0;
    for (int i = rank - 1; i > 0; --i) {
      x += index % axis[i].extent * axis[i].x_stride;
      y += index % axis[i].extent * axis[i].y_stride;
      index /= axis[i].extent;
    }
    if (rank > 0) {
      x += index * axis[0].x_stride;
      y += index * axis[0].y_stride;
    }
    return {x, y};
  }
};

struct Plan {
  Axes kept;
  Axes reduced;
  Plan(const TensorView& x, const TensorView& y) {
    for (int i = 0; i < x.rank(); ++i) {
      if (x.shape[i] == 1) continue;
      const bool is_reduced = y.shape[i] == 1;
      // The strides of y along reduced axes have no meaning.
      (is_reduced ? reduced : kept).add({x.shape[i], x.strides[i], is_reduced ? 0 : y.strides[i]});
    }
    reduced.merge();
    kept.merge();
  }
};

// The innermost axis of x is reduced. A task reduces about kPiece elements of one result. The parts
// of a result are merged in order.
template <class R, class T, class Out>
void reduce_runs(KernelContext& context, Plan plan, const T* x, Out* y) {
  using A = typename R::template Accumulator<T>;
  constexpr int64_t kPiece = 32768;
  const Axis run = plan.reduced.pop();
  const int64_t outer = plan.reduced.count(), results = plan.kept.count();
  const int64_t runs_per_piece = std::max<int64_t>(1, kPiece / run.extent);
  const int64_t pieces = (outer + runs_per_piece - 1) / runs_per_piece;
  // A single run is split too.
  const int64_t cuts = outer == 1 ? (run.extent + kPiece - 1) / kPiece : 1;
  const int64_t parts = pieces * cuts;
  const bool whole = parts == 1;  // no result has partial sums
  const Workspace workspace(context, whole ? 0 : results * parts * int64_t{sizeof(A)});
  A* partial = workspace.ptr<A>();
  const int64_t work = std::max<int64_t>(1, run.extent * outer / parts);
  parallel_for(
      results * parts, std::max<int64_t>(1, kPiece / work), [&](int64_t begin, int64_t end) {
        for (int64_t task = begin; task < end; ++task) {
          if (parts == 1 && outer == 1) {
            const auto [at_x, at_y] = plan.kept.offsets(task);
            y[at_y] = R::template finish<Out>(run_of<R, T>(x + at_x, run.extent, run.x_stride));
            continue;
          }
          const int64_t part = whole ? 0 : task % parts;
          const auto [at_x, at_y] = plan.kept.offsets(whole ? task : task / parts);
          const T* from = x + at_x;
          A total = R::template identity<T>();
          if (cuts > 1) {
            const int64_t at = part * kPiece;
            total = run_of<R, T>(from + at * run.x_stride, std::min(kPiece, run.extent - at),
                                 run.x_stride);
          } else {
            const int64_t last = std::min(outer, (part + 1) * runs_per_piece);
            for (int64_t i = part * runs_per_piece; i < last; ++i) {
              R::merge(total, static_cast<A>(run_of<R, T>(from + plan.reduced.offsets(i).first,
                                                          run.extent, run.x_stride)));
            }
          }
          if (whole) {
            y[at_y] = R::template finish<Out>(total);
          } else {
            partial[task] = total;
          }
        }
      });
  if (whole) return;
  for (int64_t i = 0; i < results; ++i) {
    A total = partial[i * parts];
    for (int64_t part = 1; part < parts; ++part) R::merge(total, partial[i * parts + part]);
    y[plan.kept.offsets(i).second] = R::template finish<Out>(total);
  }
}

// The innermost axis of x is kept. Rows are added to a row of accumulators, in at most kChunks
// chunks of rows. The partial results of the chunks are merged in order.
template <class R, class T, class Out>
void reduce_rows(KernelContext& context, Plan plan, const T* x, Out* y) {
  using A = typename R::template Accumulator<T>;
  constexpr int64_t kChunks = 16, kShortest = 64;
  constexpr bool kFast = std::is_same_v<R, Sum> && (std::is_same_v<T, float> || kIsHalf<T>);
  const Axis columns = plan.kept.pop();
  const int64_t rows = plan.reduced.count(), outer = plan.kept.count(), width = columns.extent;
  const int64_t chunk = std::max(kShortest, (rows + kChunks - 1) / kChunks);
  const int64_t chunks = (rows + chunk - 1) / chunk, blocks = (width + kColumns - 1) / kColumns;
  const Workspace workspace(context, outer * chunks * width * static_cast<int64_t>(sizeof(A)));
  A* partial = workspace.ptr<A>();
  const int64_t work = std::min(rows, chunk) * std::min(width, kColumns);
  parallel_for(
      outer * chunks * blocks, std::max<int64_t>(1, 32768 / work), [&](int64_t begin, int64_t end) {
        for (int64_t task = begin; task < end; ++task) {
          const int64_t column = task % blocks * kColumns, part = task / blocks;
          const int64_t count = std::min(kColumns, width - column);
          const T* from = x + plan.kept.offsets(part / chunks).first + column * columns.x_stride;
          A* into = partial + part * width + column;
          std::fill_n(into, count, R::template identity<T>());
          const int64_t last = std::min(rows, (part % chunks + 1) * chunk);
          if constexpr (kFast) {
            if (columns.x_stride == 1 && plan.reduced.rank == 1) {
              const int64_t first = part % chunks * chunk, stride = plan.reduced.axis[0].x_stride;
              R::add_rows(from + first * stride, last - first, stride, count, into);
              continue;
            }
          }
          for (int64_t r = part % chunks * chunk; r < last; ++r) {
            const T* line = from + plan.reduced.offsets(r).first;
            for (int64_t i = 0; i < count; ++i)
              R::merge(into[i], R::template of<A>(line[i * columns.x_stride]));
          }
        }
      });
  const int64_t merges = std::min(width, kColumns) * chunks;
  parallel_for(outer * blocks, std::max<int64_t>(1, 32768 / merges),
               [&](int64_t begin, int64_t end) {
                 for (int64_t task = begin; task < end; ++task) {
                   const int64_t o = task / blocks, column = task % blocks * kColumns;
                   const int64_t count = std::min(kColumns, width - column);
                   Out* to = y + plan.kept.offsets(o).second + column * columns.y_stride;
                   A* first = partial + o * chunks * width + column;
                   for (int64_t part = 1; part < chunks; ++part) {
                     for (int64_t i = 0; i < count; ++i)
                       R::merge(first[i], first[part * width + i]);
                   }
                   for (int64_t i = 0; i < count; ++i)
                     to[i * columns.y_stride] = R::template finish<Out>(first[i]);
                 }
               });
}

template <class R, class T, class Out>
void reduce(KernelContext& context, const TensorView& x, const TensorView& y) {
  if (y.numel() == 0) return;
  const Plan plan(x, y);
  if (x.numel() == 0) {
    for (int64_t i = 0, n = plan.kept.count(); i < n; ++i) {
      y.ptr<Out>()[plan.kept.offsets(i).second] =
          R::template finish<Out>(R::template identity<T>());
    }
    return;
  }
  const auto innermost = [](const Axes& axes) {
    return axes.rank > 0 ? axes.axis[axes.rank - 1].x_stride : std::numeric_limits<int64_t>::max();
  };
  if (innermost(plan.kept) < innermost(plan.reduced)) {
    reduce_rows<R, T, Out>(context, plan, x.ptr<T>(), y.ptr<Out>());
  } else {
    reduce_runs<R, T, Out>(context, plan, x.ptr<T>(), y.ptr<Out>());
  }
}

void sum(KernelContext& context, const TensorView& x, const TensorView& y) {
  sash::detail::dispatch_over<float, double, float16, bfloat16, int64_t, int32_t, uint8_t, bool>(
      x.dtype, "sum", [&]<class T>(TypeTag<T>) {
        using Out = std::conditional_t<std::is_integral_v<T>, int64_t, T>;
        reduce<Sum, T, Out>(context, x, y);
      });
}

template <int kSign>
void extremum(KernelContext& context, const TensorView& x, const TensorView& y) {
  dispatch_numeric(x.dtype, kSign > 0 ? "amax" : "amin",
                   [&]<class T>(TypeTag<T>) { reduce<Extremum<kSign>, T, T>(context, x, y); });
}

template <class R>
void real(KernelContext& context, const TensorView& x, const TensorView& y) {
  dispatch_floating(x.dtype, "reduce",
                    [&]<class T>(TypeTag<T>) { reduce<R, T, T>(context, x, y); });
}

// Calls body(x, y, x stride, y stride) for each line along `axis`, in parallel.
template <class T, class Out, class F>
void for_each_line(const TensorView& x, const TensorView& y, int axis, F&& body) {
  Axes lines;
  for (int i = 0; i < x.rank(); ++i) {
    if (i != axis) lines.add({x.shape[i], x.strides[i], y.strides[i]});
  }
  parallel_for(lines.count(), std::max<int64_t>(1, 8192 / x.shape[axis]),
               [&](int64_t begin, int64_t end) {
                 for (int64_t line = begin; line < end; ++line) {
                   const auto [at_x, at_y] = lines.offsets(line);
                   body(x.ptr<T>() + at_x, y.ptr<Out>() + at_y, x.strides[axis], y.strides[axis]);
                 }
               });
}

template <int kSign>
void arg_extremum(KernelContext&, const TensorView& x, const TensorView& y, int axis) {
  const int64_t count = x.shape[axis];
  dispatch_numeric(x.dtype, kSign > 0 ? "argmax" : "argmin", [&]<class T>(TypeTag<T>) {
    for_each_line<T, int64_t>(
        x, y, axis, [count](const T* from, int64_t* to, int64_t step, int64_t) {
          const T best = run_of<Extremum<kSign>>(from, count, step);
          int64_t at = 0;  // of the first that is equal, or NaN too
          while (from[at * step] != best && (best == best || from[at * step] == from[at * step])) {
            ++at;
          }
          *to = at;
        });
  });
}

void cumsum(KernelContext&, const TensorView& x, const TensorView& y, int axis) {
  const int64_t count = x.shape[axis];
  if (x.numel() == 0) return;
  sash::detail::dispatch_over<float, double, int64_t>(x.dtype, "cumsum", [&]<class T>(TypeTag<T>) {
    using A = Sum::Accumulator<T>;
    for_each_line<T, T>(x, y, axis, [count](const T* from, T* to, int64_t step, int64_t to_step) {
      A total = 0;
      for (int64_t i = 0; i < count; ++i) {
        total += static_cast<A>(from[i * step]);
        to[i * to_step] = static_cast<T>(total);
      }
    });
  });
}

}  // namespace

void register_reduce() {
  kernels::sum.set(DeviceType::cpu, sum);
  kernels::prod.set(DeviceType::cpu, real<Product>);
  kernels::length.set(DeviceType::cpu, real<Length>);
  kernels::amax.set(DeviceType::cpu, in_float<extremum<1>, 1>);
  kernels::amin.set(DeviceType::cpu, in_float<extremum<-1>, 1>);
  kernels::argmax.set(DeviceType::cpu, in_float<arg_extremum<1>>);
  kernels::argmin.set(DeviceType::cpu, in_float<arg_extremum<-1>>);
  kernels::cumsum.set(DeviceType::cpu, in_float<cumsum, 1>);
}

}  // namespace sash::cpu
