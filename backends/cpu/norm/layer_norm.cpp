#include "../../../ops/kernels/norm.h"

#include <cmath>

#include "../../../core/backend/dispatch.h"
#include "rows.h"

namespace sash::cpu {
namespace {

// The parameters' gradients have one partial sum per chunk of rows; these are added in order.
constexpr int64_t kChunks = 16;

template <class T>
void forward_row(const T* x, const T* weight, const T* bias, T* y, T* mean, T* rstd, int64_t n,
                 double eps) {
  Lanes<T> sum = T(0);
  for_lanes(n, [&](int64_t i, auto lanes) { sum += load(x + i, lanes); });
  const T m = sum_of(sum) / static_cast<T>(n);
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
  *mean = m;
  *rstd = r;
}

template <class T>
void dx_row(const T* x, const T* weight, T mean, T rstd, const T* g, T* dx, int64_t n) {
  const auto scaled = [&](int64_t i, auto lanes) -> Lanes<T> {
    return weight ? load(g + i, lanes) * load(weight + i, lanes) : load(g + i, lanes);
  };
  Lanes<T> sum_h = T(0), sum_hz = T(0);
  for_lanes(n, [&](int64_t i, auto lanes) {
    const Lanes<T> h = scaled(i, lanes);
    sum_h += h;
    sum_hz += h * ((load(x + i, lanes) - mean) * rstd);
  });
  const T mean_h = sum_of(sum_h) / static_cast<T>(n);
  const T mean_hz = sum_of(sum_hz) / static_cast<T>(n);
  for_lanes(n, [&](int64_t i, auto lanes) {
    const Lanes<T> z = (load(x + i, lanes) - mean) * rstd;
    store<T>(dx + i, lanes, (scaled(i, lanes) - mean_h - z * mean_hz) * rstd);
  });
}

template <class T>
void add_parameters_row(const T* x, T mean, T rstd, const T* g, T* dweight, T* dbias, int64_t n) {
  for_lanes(n, [&](int64_t i, auto lanes) {
    const Lanes<T> gi = load(g + i, lanes);
    store<T>(dweight + i, lanes,
             load(dweight + i, lanes) + gi * ((load(x + i, lanes) - mean) * rstd));
    store<T>(dbias + i, lanes, load(dbias + i, lanes) + gi);
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

template <class T>
void backward(KernelContext& context, const TensorView& x, const TensorView& weight,
              const TensorView& mean, const TensorView& rstd, const TensorView& g,
              const TensorView& dx, const TensorView& dweight, const TensorView& dbias) {
  const int64_t rows = x.shape[0], n = x.shape[1];
  const bool parameters = dweight.data || dbias.data;
  const int64_t grain = std::max<int64_t>(1, (rows + kChunks - 1) / kChunks);
  const int64_t chunks = (rows + grain - 1) / grain;
  const Workspace scratch(context, parameters ? chunks * 2 * n * int64_t{sizeof(T)} : 0);
  T* const partial = scratch.ptr<T>();
  parallel_for(rows, grain, [&](int64_t begin, int64_t end) {
    T* const dw = parameters ? partial + begin / grain * 2 * n : nullptr;
    if (parameters) std::fill_n(dw, 2 * n, T(0));
    for (int64_t row = begin; row < end; ++row) {
      const T* xr = x.ptr<T>() + row * n;
      const T* gr = g.ptr<T>() + row * n;
      const T m = mean.ptr<T>()[row], r = rstd.ptr<T>()[row];
      if (parameters) add_parameters_row(xr, m, r, gr, dw, dw + n, n);
      if (dx.data) dx_row(xr, weight.ptr<T>(), m, r, gr, dx.ptr<T>() + row * n, n);
    }
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
      forward_row(x.ptr<T>() + row * n, weight.ptr<T>(), bias.ptr<T>(), y.ptr<T>() + row * n,
                  mean.ptr<T>() + row, rstd.ptr<T>() + row, n, eps);
    });
  });
}

void layer_norm_backward(KernelContext& context, const TensorView& x, const TensorView& weight,
                         const TensorView& mean, const TensorView& rstd, const TensorView& g,
                         const TensorView& dx, const TensorView& dweight, const TensorView& dbias) {
  dispatch_floating(x.dtype, "layer_norm", [&]<class T>(TypeTag<T>) {
    backward<T>(context, x, weight, mean, rstd, g, dx, dweight, dbias);
  });
}

}  // namespace

void register_layer_norm() {
  kernels::layer_norm_forward.set(DeviceType::cpu, layer_norm_forward);
  kernels::layer_norm_backward.set(DeviceType::cpu, layer_norm_backward);
}

}  // namespace sash::cpu
