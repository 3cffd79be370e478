#pragma once

#include <Eigen/Core>

#include <algorithm>
#include <limits>
#include <utility>

#include "../../../core/parallel.h"
#include "../../../tensor/kernels/view.h"
#include "../shape/convert.h"

/// Reductions over any axes of strided views.
namespace sash::cpu {

template <class T>
using Run = Eigen::Map<const Eigen::Array<T, Eigen::Dynamic, 1>>;
template <class T>
using StridedRun = Eigen::Map<const Eigen::Array<T, Eigen::Dynamic, 1>, Eigen::Unaligned,
                              Eigen::InnerStride<Eigen::Dynamic>>;

// The most columns in a task of `reduce_rows`.
inline constexpr int64_t kColumns = 512;

// A reduction has an accumulator type, its identity, `run` (of a vector of elements), `of` (of one
// element) or `add_lines` (of rows of elements), `merge` (adds one accumulator to another) and
// `finish` (makes the result).
struct Reduction {
  // Whether `run` and `add_rows` take pointers to elements side by side.
  template <class T>
  static constexpr bool kFast = false;

  template <class A, class T>
  static A of(T x) {
    return converted<A>(x);
  }
  template <class Out, class A>
  static Out finish(A a) {
    return converted<Out>(a);
  }
};

template <class R, class T>
auto run_of(const T* x, int64_t count, int64_t stride) {
  if constexpr (kIsHalf<T>) {
    return R::run(x, count, stride);
  } else {
    if constexpr (R::template kFast<T>) {
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
  Plan(View x, View y) {
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
template <class R, class T, class Write>
void reduce_runs(KernelContext& context, Plan plan, const T* x, const Write& write) {
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
  parallel_for_each(results * parts, kPiece / work, [&](int64_t task) {
    if (parts == 1 && outer == 1) {
      const auto [at_x, at_y] = plan.kept.offsets(task);
      write(at_y, run_of<R, T>(x + at_x, run.extent, run.x_stride));
      return;
    }
    const int64_t part = whole ? 0 : task % parts;
    const auto [at_x, at_y] = plan.kept.offsets(whole ? task : task / parts);
    const T* from = x + at_x;
    A total = R::template identity<T>();
    if (cuts > 1) {
      const int64_t at = part * kPiece;
      total =
          run_of<R, T>(from + at * run.x_stride, std::min(kPiece, run.extent - at), run.x_stride);
    } else {
      const int64_t last = std::min(outer, (part + 1) * runs_per_piece);
      for (int64_t i = part * runs_per_piece; i < last; ++i) {
        R::merge(total, static_cast<A>(run_of<R, T>(from + plan.reduced.offsets(i).first,
                                                    run.extent, run.x_stride)));
      }
    }
    if (whole) {
      write(at_y, total);
    } else {
      partial[task] = total;
    }
  });
  if (whole) return;
  for (int64_t i = 0; i < results; ++i) {
    A total = partial[i * parts];
    for (int64_t part = 1; part < parts; ++part) R::merge(total, partial[i * parts + part]);
    write(plan.kept.offsets(i).second, total);
  }
}

// The innermost axis of x is kept. Rows are added to a row of accumulators, in at most kChunks
// chunks of rows. The partial results of the chunks are merged in order.
template <class R, class T, class Write>
void reduce_rows(KernelContext& context, Plan plan, const T* x, const Write& write) {
  using A = typename R::template Accumulator<T>;
  constexpr int64_t kChunks = 16, kShortest = 64;
  const Axis columns = plan.kept.pop();
  const int64_t rows = plan.reduced.count(), outer = plan.kept.count(), width = columns.extent;
  const int64_t chunk = std::max(kShortest, (rows + kChunks - 1) / kChunks);
  const int64_t chunks = (rows + chunk - 1) / chunk, blocks = (width + kColumns - 1) / kColumns;
  const Workspace workspace(context, outer * chunks * width * static_cast<int64_t>(sizeof(A)));
  A* partial = workspace.ptr<A>();
  const int64_t work = std::min(rows, chunk) * std::min(width, kColumns);
  parallel_for_each(outer * chunks * blocks, 32768 / work, [&](int64_t task) {
    const int64_t column = task % blocks * kColumns, part = task / blocks;
    const int64_t count = std::min(kColumns, width - column);
    const T* from = x + plan.kept.offsets(part / chunks).first + column * columns.x_stride;
    A* into = partial + part * width + column;
    std::fill_n(into, count, R::template identity<T>());
    const int64_t first = part % chunks * chunk, last = std::min(rows, first + chunk);
    if constexpr (R::template kFast<T>) {
      if (columns.x_stride == 1 && plan.reduced.rank == 1) {
        const int64_t stride = plan.reduced.axis[0].x_stride;
        R::add_rows(from + first * stride, last - first, stride, count, into);
        return;
      }
    }
    const auto line = [&](int64_t r) { return from + plan.reduced.offsets(r).first; };
    if constexpr (requires { R::add_lines(line, first, last, columns.x_stride, count, into); }) {
      R::add_lines(line, first, last, columns.x_stride, count, into);
      return;
    } else {
      for (int64_t r = first; r < last; ++r) {
        const T* const x_r = line(r);
        for (int64_t i = 0; i < count; ++i)
          R::merge(into[i], R::template of<A>(x_r[i * columns.x_stride]));
      }
    }
  });
  const int64_t merges = std::min(width, kColumns) * chunks;
  parallel_for_each(outer * blocks, 32768 / merges, [&](int64_t task) {
    const int64_t o = task / blocks, column = task % blocks * kColumns;
    const int64_t count = std::min(kColumns, width - column);
    const int64_t to = plan.kept.offsets(o).second + column * columns.y_stride;
    A* first = partial + o * chunks * width + column;
    for (int64_t part = 1; part < chunks; ++part) {
      for (int64_t i = 0; i < count; ++i) R::merge(first[i], first[part * width + i]);
    }
    for (int64_t i = 0; i < count; ++i) write(to + i * columns.y_stride, first[i]);
  });
}

// Calls write(offset in y, accumulator) for every result.
template <class R, class T, class Write>
void reduce(KernelContext& context, View x, View y, const Write& write) {
  if (y.numel() == 0) return;
  const Plan plan(x, y);
  if (x.numel() == 0) {
    for (int64_t i = 0, n = plan.kept.count(); i < n; ++i) {
      write(plan.kept.offsets(i).second, R::template identity<T>());
    }
    return;
  }
  const auto innermost = [](const Axes& axes) {
    return axes.rank > 0 ? axes.axis[axes.rank - 1].x_stride : std::numeric_limits<int64_t>::max();
  };
  if (innermost(plan.kept) < innermost(plan.reduced)) {
    reduce_rows<R>(context, plan, x.ptr<T>(), write);
  } else {
    reduce_runs<R>(context, plan, x.ptr<T>(), write);
  }
}

}  // namespace sash::cpu
