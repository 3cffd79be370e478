#include "../../../ops/kernels/norm.h"

#include <cmath>

#include "../../../core/backend/dispatch.h"
#include "../../../ops/kernels/rms_norm.h"
#include "../elementwise/dropout.h"
#include "../shape/in_float.h"
#include "rows.h"

namespace sash::cpu {
namespace {

// The parameters' gradients have one partial sum per chunk of rows; these are added in order.
constexpr int64_t kChunks = 16;

/// Calls f(first, last) for the rows [begin, end) of n elements, in groups of about 512 elements:
/// enough for dropout to draw at a time, and still in the first cache when they are used.
template <class F>
void for_each_group(int64_t begin, int64_t end, int64_t n, F&& f) {
  const int64_t group = std::max<int64_t>(1, 512 / std::max<int64_t>(1, n));
  for (int64_t row = begin; row < end; row += group) f(row, std::min(end, row + group));
}

template <class T>
T sum_of_row(const T* x, int64_t n) {
  Lanes<T> sum = T(0);
  for_lanes(n, [&](int64_t i, auto lanes) { sum += load(x + i, lanes); });
  return sum_of(sum);
}

/// y = a + b; returns the sum of y. y may be a.
template <class T>
T add_rows(const T* a, const T* b, T* y, int64_t n) {
  Lanes<T> sum = T(0);
  for_lanes(n, [&](int64_t i, auto lanes) {
    const Lanes<T> total = load(a + i, lanes) + load(b + i, lanes);
    sum += total;
    store(y + i, lanes, total);
  });
  return sum_of(sum);
}

/// `sum` is that of x, or 0 for root mean squares; y may be x. mean may be null.
template <class T>
void normalise_row(const T* x, T sum, const T* weight, const T* bias, T* y, T* mean, T* rstd,
                   int64_t n, double eps) {
  const T m = sum / static_cast<T>(n);
  Lanes<T> squares = T(0);
  for_lanes(n, [&](int64_t i, auto lanes) {
    const Lanes<T> centred = load(x + i, lanes, m) - m;
    squares += centred * centred;
  });
  const T r = 1 / std::sqrt(sum_of(squares) / static_cast<T>(n) + static_cast<T>(eps));
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
template <class T>
void backward_row(const T* x, const T* weight, const T* mean, T rstd, const T* g, const T* dsum,
                  T* dx, T* dweight, T* dbias, int64_t n) {
  const T m = mean ? *mean : T(0);
  Lanes<T> sum_h = T(0), sum_hz = T(0);
  for_lanes(n, [&](int64_t i, auto lanes) {
    const Lanes<T> gi = load(g + i, lanes), z = (load(x + i, lanes) - m) * rstd;
    if (dweight) {
      store<T>(dweight + i, lanes, load(dweight + i, lanes) + gi * z);
      store<T>(dbias + i, lanes, load(dbias + i, lanes) + gi);
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
    store<T>(dx + i, lanes, dsum ? load(dsum + i, lanes) + d : d);
  });
}

template <class T>
void add_chunks(const T* partial, int64_t chunks, int64_t n, T* out) {
  if (!out) return;
  for_lanes(n, [&](int64_t i, auto lanes) {
    Lanes<T> total = T(0);
    for (int64_t c = 0; c < chunks; ++c) total += load(partial + c * 2 * n + i, lanes);
    store(out + i, lanes, total);
  });
}

/// What a sum's gradient gets and gives beside the norm's.
struct SumGradient {
  TensorView dsum{}, dbranch{};
  kernels::BranchDropout dropout{};
};

template <class T>
void backward(KernelContext& context, const TensorView& x, const TensorView& weight,
              const TensorView& mean, const TensorView& rstd, const TensorView& g,
              const SumGradient& sum, const TensorView& dx, const TensorView& dweight,
              const TensorView& dbias) {
  const int64_t rows = x.shape[0], n = x.shape[1];
  const bool parameters = dweight.data || dbias.data;
  const int64_t grain = std::max<int64_t>(1, (rows + kChunks - 1) / kChunks);
  const int64_t chunks = (rows + grain - 1) / grain;
  const Workspace scratch(context, parameters ? chunks * 2 * n * int64_t{sizeof(T)} : 0);
  T* const partial = scratch.ptr<T>();
  const DropoutRule rule(sum.dropout.p, sum.dropout.state);
  const auto row_of = [n](const TensorView& view, int64_t row) {
    return view.data ? view.ptr<T>() + row * n : nullptr;
  };
  parallel_for(rows, grain, [&](int64_t begin, int64_t end) {
    T* const dw = parameters ? partial + begin / grain * 2 * n : nullptr;
    T* const db = parameters ? dw + n : nullptr;
    if (parameters) std::fill_n(dw, 2 * n, T(0));
    for_each_group(begin, end, n, [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) {
        backward_row(row_of(x, row), weight.ptr<const T>(),
                     mean.data ? mean.ptr<const T>() + row : nullptr, rstd.ptr<T>()[row],
                     row_of(g, row), row_of(sum.dsum, row), row_of(dx, row), dw, db, n);
      }
      if (sum.dbranch.data) {
        drop(rule, first * n, (last - first) * n, row_of(sum.dbranch, first), row_of(dx, first));
      }
    });
  });
  if (!parameters) return;
  add_chunks(partial, chunks, n, dweight.ptr<T>());
  add_chunks(partial + n, chunks, n, dbias.ptr<T>());
}

void layer_norm_forward(KernelContext&, const TensorView& x, const TensorView& weight,
                        const TensorView& bias, const TensorView& y, const TensorView& mean,
                        const TensorView& rstd, double eps) {
  dispatch_floating(x.dtype, "layer_norm", [&]<class T>(TypeTag<T>) {
    const int64_t n = x.shape[1];
    for_each_row_of(x.shape[0], n, [&](int64_t row) {
      const T* const from = x.ptr<T>() + row * n;
      normalise_row(from, sum_of_row(from, n), weight.ptr<const T>(), bias.ptr<const T>(),
                    y.ptr<T>() + row * n, mean.ptr<T>() + row, rstd.ptr<T>() + row, n, eps);
    });
  });
}

void layer_norm_backward(KernelContext& context, const TensorView& x, const TensorView& weight,
                         const TensorView& mean, const TensorView& rstd, const TensorView& g,
                         const TensorView& dx, const TensorView& dweight, const TensorView& dbias) {
  dispatch_floating(x.dtype, "layer_norm", [&]<class T>(TypeTag<T>) {
    backward<T>(context, x, weight, mean, rstd, g, {}, dx, dweight, dbias);
  });
}

void dropout_add_layer_norm_forward(KernelContext&, const TensorView& branch,
                                    const TensorView& residual, const TensorView& weight,
                                    const TensorView& bias, const kernels::BranchDropout& dropout,
                                    const TensorView& sum, const TensorView& y,
                                    const TensorView& mean, const TensorView& rstd, double eps) {
  dispatch_floating(sum.dtype, "dropout_add_layer_norm", [&]<class T>(TypeTag<T>) {
    const int64_t rows = sum.shape[0], n = sum.shape[1];
    const DropoutRule rule(dropout.p, dropout.state);
    parallel_for(rows, std::max<int64_t>(1, 16384 / std::max<int64_t>(1, n)),
                 [&](int64_t begin, int64_t end) {
                   for_each_group(begin, end, n, [&](int64_t first, int64_t last) {
                     const TensorView& kept = dropout.p == 0 ? branch : sum;
                     if (dropout.p != 0) {
                       drop(rule, first * n, (last - first) * n, sum.ptr<T>() + first * n,
                            branch.ptr<const T>() + first * n);
                     }
                     for (int64_t row = first; row < last; ++row) {
                       T* const to = sum.ptr<T>() + row * n;
                       const T total = add_rows(kept.ptr<const T>() + row * n,
                                                residual.ptr<const T>() + row * n, to, n);
                       normalise_row<T>(to, total, weight.ptr<const T>(), bias.ptr<const T>(),
                                        y.ptr<T>() + row * n, mean.ptr<T>() + row,
                                        rstd.ptr<T>() + row, n, eps);
                     }
                   });
                 });
  });
}

void dropout_add_layer_norm_backward(KernelContext& context, const TensorView& sum,
                                     const TensorView& weight, const TensorView& mean,
                                     const TensorView& rstd, const TensorView& g,
                                     const TensorView& dsum, const kernels::BranchDropout& dropout,
                                     const TensorView& dresidual, const TensorView& dbranch,
                                     const TensorView& dweight, const TensorView& dbias) {
  dispatch_floating(sum.dtype, "dropout_add_layer_norm", [&]<class T>(TypeTag<T>) {
    backward<T>(context, sum, weight, mean, rstd, g, {dsum, dbranch, dropout}, dresidual, dweight,
                dbias);
  });
}

/// 1 + weight, or weight itself.
template <class T>
class OffsetWeight {
 public:
  OffsetWeight(KernelContext& context, const TensorView& weight, bool offset)
      : memory_(context, offset ? weight.shape[0] * int64_t{sizeof(T)} : 0), view_(weight) {
    if (!offset) return;
    T* const sum = memory_.template ptr<T>();
    for (int64_t i = 0; i < weight.shape[0]; ++i) sum[i] = 1 + weight.ptr<const T>()[i];
    view_.data = sum;
  }
  const TensorView& view() const { return view_; }

 private:
  Workspace memory_;
  TensorView view_;
};

void rms_norm_forward(KernelContext& context, const TensorView& x, const TensorView& residual,
                      const TensorView& weight, const TensorView& sum, const TensorView& y,
                      const TensorView& rstd, double eps, bool unit_offset) {
  dispatch_floating(x.dtype, "rms_norm", [&]<class T>(TypeTag<T>) {
    const OffsetWeight<T> w(context, weight, unit_offset);
    const int64_t n = x.shape[1];
    for_each_row_of(x.shape[0], n, [&](int64_t row) {
      const T* from = x.ptr<const T>() + row * n;
      if (residual.data) {
        T* const to = sum.ptr<T>() + row * n;
        add_rows(from, residual.ptr<const T>() + row * n, to, n);
        from = to;
      }
      normalise_row<T>(from, 0, w.view().template ptr<const T>(), nullptr, y.ptr<T>() + row * n,
                       nullptr, rstd.ptr<T>() + row, n, eps);
    });
  });
}

void rms_norm_backward(KernelContext& context, const TensorView& x, const TensorView& weight,
                       const TensorView& rstd, const TensorView& g, const TensorView& dsum,
                       const TensorView& dx, const TensorView& dweight, bool unit_offset) {
  dispatch_floating(x.dtype, "rms_norm", [&]<class T>(TypeTag<T>) {
    const OffsetWeight<T> w(context, weight, unit_offset);
    backward<T>(context, x, w.view(), {}, rstd, g, {dsum, {}, {}}, dx, dweight, {});
  });
}

}  // namespace

void register_layer_norm() {
  kernels::layer_norm_forward.set(DeviceType::cpu, in_float<layer_norm_forward, 3>);
  kernels::layer_norm_backward.set(DeviceType::cpu, in_float<layer_norm_backward, 5, 6, 7>);
  kernels::dropout_add_layer_norm_forward.set(DeviceType::cpu,
                                              in_float<dropout_add_layer_norm_forward, 5, 6>);
  kernels::dropout_add_layer_norm_backward.set(
      DeviceType::cpu, in_float<dropout_add_layer_norm_backward, 7, 8, 9, 10>);
  kernels::rms_norm_forward.set(DeviceType::cpu, in_float<rms_norm_forward, 3, 4>);
  kernels::rms_norm_backward.set(DeviceType::cpu, in_float<rms_norm_backward, 5, 6>);
}

}  // namespace sash::cpu
