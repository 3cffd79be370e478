#include "../../../ops/kernels/norm.h"

#include <algorithm>
#include <cmath>

#include "../../../core/backend/dispatch.h"
#include "../../../core/parallel.h"
#include "../elementwise/dropout.h"
#include "rows.h"

namespace sash::cpu {
namespace {

// The parameters' gradients have one partial sum per chunk of rows; these are added in order.
constexpr int64_t kChunks = 16;

// Elements that dropout draws at a time, and that are still in the first cache when they are used.
constexpr int64_t kGroup = 512;

/// Calls f(first, last) for the rows [begin, end) of n elements: of at most kGroup elements, or
/// one row.
template <class F>
void for_each_group(int64_t begin, int64_t end, int64_t n, F&& f) {
  const int64_t group = std::max<int64_t>(1, kGroup / std::max<int64_t>(1, n));
  for (int64_t row = begin; row < end; row += group) f(row, std::min(end, row + group));
}

template <class S>
compute_t<S> sum_of_row(const S* x, int64_t n) {
  Lanes<compute_t<S>> sum = 0;
  for_lanes(n, [&](int64_t i, auto lanes) { sum += load(x + i, lanes); });
  return sum_of(sum);
}

/// y = a + b; returns the sum of y, as it is stored. y may be a.
template <class A, class S>
compute_t<S> add_rows(const A* a, const S* b, S* y, int64_t n) {
  Lanes<compute_t<S>> sum = 0;
  for_lanes(n, [&](int64_t i, auto lanes) {
    const auto total = load(a + i, lanes) + load(b + i, lanes);
    store(y + i, lanes, total);
    sum += kIsHalf<S> ? load(y + i, lanes) : total;
  });
  return sum_of(sum);
}

/// y = dropout(a) + b, of the elements from `flat` on; returns the sum of y.
template <class S>
compute_t<S> add_dropped(const DropoutRule& rule, int64_t flat, const S* a, const S* b, S* y,
                         int64_t n) {
  compute_t<S> dropped[kGroup];
  for (int64_t i = 0; i < n; i += kGroup) {
    const int64_t count = std::min(kGroup, n - i);
    drop(rule, flat + i, count, dropped, a + i);
    add_rows(dropped, b + i, y + i, count);
  }
  return sum_of_row(y, n);
}

/// `sum` is that of x; for root mean squares it is 0, and mean null. y may be x. The mean of x less
/// `sum / n` corrects the rounding of long sums.
template <class S, class T = compute_t<S>>
void normalise_row(const S* x, T sum, const T* weight, const T* bias, S* y, T* mean, T* rstd,
                   int64_t n, double eps) {
  const T guess = sum / static_cast<T>(n);
  Lanes<T> rest = T(0), squares = T(0);
  for_lanes(n, [&](int64_t i, auto lanes) {
    const Lanes<T> centred = load(x + i, lanes, guess) - guess;
    rest += centred;
    squares += centred * centred;
  });
  const T shift = mean ? sum_of(rest) / static_cast<T>(n) : T(0), m = guess + shift;
  const T variance = std::max(sum_of(squares) / static_cast<T>(n) - shift * shift, T(0));
  const T r = 1 / std::sqrt(variance + static_cast<T>(eps));
  for_lanes(n, [&](int64_t i, auto lanes) {
    Lanes<T> z = (load(x + i, lanes) - m) * r;
    if (weight) z *= load(weight + i, lanes);
    if (bias) z += load(bias + i, lanes);
    store(y + i, lanes, z);
  });
  if (mean) *mean = m;
  *rstd = r;
}

/// Adds to dweight and dbias, [n], if they are wanted. dx = dsum + the gradient, if wanted; dsum
/// may be null (0). `mean` is null for root mean squares.
template <class S, class D, class T = compute_t<S>>
void backward_row(const S* x, const T* weight, const T* mean, T rstd, const S* g, const S* dsum,
                  D* dx, T* dweight, T* dbias, int64_t n) {
  const T m = mean ? *mean : T(0);
  Lanes<T> sum_h = T(0), sum_hz = T(0);
  for_lanes(n, [&](int64_t i, auto lanes) {
    const Lanes<T> gi = load(g + i, lanes), z = (load(x + i, lanes) - m) * rstd;
    if (dweight) {
      store(dweight + i, lanes, load(dweight + i, lanes) + gi * z);
      store(dbias + i, lanes, load(dbias + i, lanes) + gi);
    }
    const Lanes<T> h = weight ? gi * load(weight + i, lanes) : gi;
    sum_h += h;
    sum_hz += h * z;
  });
  if (!dx) return;
  const T mean_h = mean ? sum_of(sum_h) / static_cast<T>(n) : T(0);
  const T mean_hz = sum_of(sum_hz) / static_cast<T>(n);
  for_lanes(n, [&](int64_t i, auto lanes) {
    const Lanes<T> gi = load(g + i, lanes), z = (load(x + i, lanes) - m) * rstd;
    const Lanes<T> h = weight ? gi * load(weight + i, lanes) : gi;
    const Lanes<T> d = (h - mean_h - z * mean_hz) * rstd;
    store(dx + i, lanes, dsum ? load(dsum + i, lanes) + d : d);
  });
}

/// The rows of a chunk.
int64_t chunk_of(int64_t rows) { return std::max<int64_t>(1, (rows + kChunks - 1) / kChunks); }

int64_t chunks_of(int64_t rows) { return (rows + chunk_of(rows) - 1) / chunk_of(rows); }

/// out [n]: the sums of partial [chunks, 2, n].
template <class S, class T>
void add_chunks(const T* partial, int64_t chunks, int64_t n, S* out) {
  if (!out) return;
  for_lanes(n, [&](int64_t i, auto lanes) {
    Lanes<T> total = T(0);
    for (int64_t c = 0; c < chunks; ++c) total += load(partial + c * 2 * n + i, lanes);
    store(out + i, lanes, total);
  });
}

/// A weight or bias in the type that rows are computed in, or 1 + a weight. May be null.
template <class T>
class Parameter {
 public:
  Parameter(KernelContext& context, View view, bool offset = false)
      : memory_(context, view.data && (offset || is_half(view.dtype))
                             ? view.shape[0] * int64_t{sizeof(T)}
                             : 0),
        values_(view.ptr<const T>()) {
    if (!view.data || (!offset && !is_half(view.dtype))) return;
    const int64_t n = view.shape[0];
    T* const values = memory_.template ptr<T>();
    dispatch_with_halves(view.dtype, "norm", [&]<class S>(TypeTag<S>) {
      for (int64_t i = 0; i < n; ++i) {
        values[i] = static_cast<T>(offset) + static_cast<T>(compute_t<S>(view.ptr<const S>()[i]));
      }
    });
    values_ = values;
  }
  const T* values() const { return values_; }

 private:
  Workspace memory_;
  const T* values_;
};

/// What a sum's gradient gets and gives beside the norm's.
struct SumGradient {
  TensorView dsum{}, dbranch{};
  kernels::BranchDropout dropout{};
};

/// `partial` [chunks, 2, n]: the parameters' gradients of each chunk; null if not wanted.
template <class S, class T = compute_t<S>>
void backward(KernelContext& context, View x, View weight, View mean, View rstd, View g,
              const SumGradient& sum, View dx, T* partial, bool unit_offset = false) {
  const int64_t rows = x.shape[0], n = x.shape[1];
  const Parameter<T> w(context, weight, unit_offset);
  const int64_t grain = chunk_of(rows), chunks = chunks_of(rows);
  // What dropout takes of halves is not rounded before.
  const bool widens = kIsHalf<S> && sum.dbranch.data;
  const int64_t most = std::max(n, kGroup);
  const Workspace wide(context, widens ? chunks * most * int64_t{sizeof(T)} : 0);
  const DropoutRule rule(sum.dropout.p, sum.dropout.state);
  const auto row_of = [n](View view, int64_t row) {
    return view.data ? view.ptr<S>() + row * n : nullptr;
  };
  parallel_for(rows, grain, [&](int64_t begin, int64_t end) {
    T* const dw = partial ? partial + begin / grain * 2 * n : nullptr;
    T* const db = partial ? dw + n : nullptr;
    T* const group = widens ? wide.ptr<T>() + begin / grain * most : nullptr;
    if (partial) std::fill_n(dw, 2 * n, T(0));
    for_each_group(begin, end, n, [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) {
        const auto into = [&](auto* to) {
          backward_row(row_of(x, row), w.values(), mean.data ? mean.ptr<const T>() + row : nullptr,
                       rstd.ptr<T>()[row], row_of(g, row), row_of(sum.dsum, row), to, dw, db, n);
        };
        if (widens) {
          into(group + (row - first) * n);
        } else {
          into(row_of(dx, row));
        }
      }
      if (!sum.dbranch.data) return;
      const int64_t count = (last - first) * n;
      if constexpr (kIsHalf<S>) {
        drop(rule, first * n, count, row_of(sum.dbranch, first), group);
        if (dx.data) narrow(group, count, row_of(dx, first));
      } else {
        drop(rule, first * n, count, row_of(sum.dbranch, first), row_of(dx, first));
      }
    });
  });
}

void layer_norm_forward(KernelContext& context, View x, View weight, View bias, View y, View mean,
                        View rstd, double eps) {
  dispatch_with_halves(x.dtype, "layer_norm", [&]<class S>(TypeTag<S>) {
    using T = compute_t<S>;
    const Parameter<T> w(context, weight), b(context, bias);
    const int64_t n = x.shape[1];
    for_each_row_of(x.shape[0], n, [&](int64_t row) {
      const S* const from = x.ptr<S>() + row * n;
      normalise_row(from, sum_of_row(from, n), w.values(), b.values(), y.ptr<S>() + row * n,
                    mean.ptr<T>() + row, rstd.ptr<T>() + row, n, eps);
    });
  });
}

void layer_norm_backward(KernelContext& context, View x, View weight, View mean, View rstd, View g,
                         View dx, View sums) {
  dispatch_with_halves(x.dtype, "layer_norm", [&]<class S>(TypeTag<S>) {
    backward<S>(context, x, weight, mean, rstd, g, {}, dx, sums.ptr<compute_t<S>>());
  });
}

void layer_norm_chunks(KernelContext&, View x, int64_t& chunks) { chunks = chunks_of(x.shape[0]); }

void add_layer_norm_chunks(KernelContext&, View sums, View dweight, View dbias) {
  const int64_t chunks = sums.shape[0], n = sums.shape[2];
  const DType dtype = dweight.data ? dweight.dtype : dbias.dtype;
  dispatch_with_halves(dtype, "layer_norm", [&]<class S>(TypeTag<S>) {
    const auto* partial = sums.ptr<const compute_t<S>>();
    add_chunks(partial, chunks, n, dweight.ptr<S>());
    add_chunks(partial + n, chunks, n, dbias.ptr<S>());
  });
}

void dropout_add_layer_norm_forward(KernelContext& context, View branch, View residual, View weight,
                                    View bias, const kernels::BranchDropout& dropout, View sum,
                                    View y, View mean, View rstd, double eps) {
  dispatch_with_halves(sum.dtype, "dropout_add_layer_norm", [&]<class S>(TypeTag<S>) {
    using T = compute_t<S>;
    const Parameter<T> w(context, weight), b(context, bias);
    const int64_t rows = sum.shape[0], n = sum.shape[1];
    const DropoutRule rule(dropout.p, dropout.state);
    parallel_for(rows, rows_of_piece(n), [&](int64_t begin, int64_t end) {
      for_each_group(begin, end, n, [&](int64_t first, int64_t last) {
        // Dropout of several short rows at a time.
        T dropped[kGroup];
        const bool drops = dropout.p != 0, together = drops && n <= kGroup;
        if (together) {
          drop(rule, first * n, (last - first) * n, dropped, branch.ptr<const S>() + first * n);
        }
        for (int64_t row = first; row < last; ++row) {
          const S* const added = branch.ptr<const S>() + row * n;
          const S* const before = residual.ptr<const S>() + row * n;
          S* const to = sum.ptr<S>() + row * n;
          const T total = together ? add_rows(dropped + (row - first) * n, before, to, n)
                          : drops  ? add_dropped(rule, row * n, added, before, to, n)
                                   : add_rows(added, before, to, n);
          normalise_row(to, total, w.values(), b.values(), y.ptr<S>() + row * n,
                        mean.ptr<T>() + row, rstd.ptr<T>() + row, n, eps);
        }
      });
    });
  });
}

void dropout_add_layer_norm_backward(KernelContext& context, View sum, View weight, View mean,
                                     View rstd, View g, View dsum,
                                     const kernels::BranchDropout& dropout, View dresidual,
                                     View dbranch, View sums) {
  dispatch_with_halves(sum.dtype, "dropout_add_layer_norm", [&]<class S>(TypeTag<S>) {
    backward<S>(context, sum, weight, mean, rstd, g, {dsum, dbranch, dropout}, dresidual,
                sums.ptr<compute_t<S>>());
  });
}

void rms_norm_forward(KernelContext& context, View x, View residual, View weight, View sum, View y,
                      View rstd, double eps, bool unit_offset) {
  dispatch_with_halves(x.dtype, "rms_norm", [&]<class S>(TypeTag<S>) {
    using T = compute_t<S>;
    const Parameter<T> w(context, weight, unit_offset);
    const int64_t n = x.shape[1];
    for_each_row_of(x.shape[0], n, [&](int64_t row) {
      const S* from = x.ptr<const S>() + row * n;
      if (residual.data) {
        S* const to = sum.ptr<S>() + row * n;
        add_rows(from, residual.ptr<const S>() + row * n, to, n);
        from = to;
      }
      normalise_row<S, T>(from, T(0), w.values(), nullptr, y.ptr<S>() + row * n, nullptr,
                          rstd.ptr<T>() + row, n, eps);
    });
  });
}

void rms_norm_backward(KernelContext& context, View x, View weight, View rstd, View g, View dsum,
                       View dx, View dweight, bool unit_offset) {
  dispatch_with_halves(x.dtype, "rms_norm", [&]<class S>(TypeTag<S>) {
    using T = compute_t<S>;
    const int64_t chunks = chunks_of(x.shape[0]), n = x.shape[1];
    const Workspace scratch(context, dweight.data ? chunks * 2 * n * int64_t{sizeof(T)} : 0);
    T* const partial = scratch.ptr<T>();
    backward<S>(context, x, weight, {}, rstd, g, {dsum, {}, {}}, dx, partial, unit_offset);
    add_chunks(partial, chunks, n, dweight.ptr<S>());
  });
}

void scale_channels(KernelContext&, View x, View mean, View scale, View shift, View y) {
  constexpr int64_t kPiece = 16384;
  const int64_t channels = x.shape[1], length = x.shape[2];
  dispatch_floating(x.dtype, "batch_norm", [&]<class T>(TypeTag<T>) {
    const auto run = [&](int64_t begin, int64_t end) {
      for (int64_t line = begin; line < end; ++line) {
        const int64_t c = line % channels;
        const T m = mean.ptr<T>()[c], a = scale.ptr<T>()[c], b = shift.ptr<T>()[c];
        const T* const from = x.ptr<T>() + line * length;
        T* const to = y.ptr<T>() + line * length;
        for (int64_t i = 0; i < length; ++i) to[i] = (from[i] - m) * a + b;
      }
    };
    parallel_for(x.shape[0] * channels, kPiece / std::max<int64_t>(1, length), run);
  });
}

}  // namespace

void register_layer_norm() {
  kernels::layer_norm_forward.set(DeviceType::cpu, layer_norm_forward);
  kernels::layer_norm_backward.set(DeviceType::cpu, layer_norm_backward);
  kernels::layer_norm_chunks.set(DeviceType::cpu, layer_norm_chunks);
  kernels::add_layer_norm_chunks.set(DeviceType::cpu, add_layer_norm_chunks);
  kernels::dropout_add_layer_norm_forward.set(DeviceType::cpu, dropout_add_layer_norm_forward);
  kernels::dropout_add_layer_norm_backward.set(DeviceType::cpu, dropout_add_layer_norm_backward);
  kernels::rms_norm_forward.set(DeviceType::cpu, rms_norm_forward);
  kernels::rms_norm_backward.set(DeviceType::cpu, rms_norm_backward);
}

void register_scale_channels() { kernels::scale_channels.set(DeviceType::cpu, scale_channels); }

}  // namespace sash::cpu
