#include "../../../ops/kernels/norm.h"

#include <cmath>

#include "../../../core/backend/dispatch.h"
#include "../shape/in_float.h"
#include "rows.h"

namespace sash::cpu {
namespace {

template <class T>
void softmax_row(const T* x, T* y, int64_t n) {
  constexpr T lowest = -std::numeric_limits<T>::infinity();
  const T max = finite_max(x, n);
  Lanes<T> sum = T(0);
  for_lanes(n, [&](int64_t i, auto lanes) {
    const Lanes<T> e = exp(load(x + i, lanes, lowest) - max);
    sum += e;
    store(y + i, lanes, e);
  });
  const T total = sum_of(sum);
  const T scale = total == 0 ? T(0) : 1 / total;
  for_lanes(n, [&](int64_t i, auto lanes) { store<T>(y + i, lanes, load(y + i, lanes) * scale); });
}

template <class T>
void log_softmax_row(const T* x, T* y, int64_t n) {
  constexpr T lowest = -std::numeric_limits<T>::infinity();
  const T max = finite_max(x, n);
  Lanes<T> sum = T(0);
  for_lanes(n, [&](int64_t i, auto lanes) { sum += exp(load(x + i, lanes, lowest) - max); });
  const T total = sum_of(sum);
  const T log_sum = total == 0 ? T(0) : std::log(total);
  for_lanes(n, [&](int64_t i, auto lanes) {
    store<T>(y + i, lanes, (load(x + i, lanes) - max) - log_sum);
  });
}

template <class T>
void softmax_backward_row(const T* y, const T* g, T* dx, int64_t n) {
  Lanes<T> sum = T(0);
  for_lanes(n, [&](int64_t i, auto lanes) { sum += load(y + i, lanes) * load(g + i, lanes); });
  const T dot = sum_of(sum);
  for_lanes(n, [&](int64_t i, auto lanes) {
    store<T>(dx + i, lanes, load(y + i, lanes) * (load(g + i, lanes) - dot));
  });
}

template <class T>
void log_softmax_backward_row(const T* y, const T* g, T* dx, int64_t n) {
  Lanes<T> sum = T(0);
  for_lanes(n, [&](int64_t i, auto lanes) { sum += load(g + i, lanes); });
  const T total = sum_of(sum);
  for_lanes(n, [&](int64_t i, auto lanes) {
    store<T>(dx + i, lanes, load(g + i, lanes) - exp(load(y + i, lanes)) * total);
  });
}

// Calls `row(x_row, more_rows..., n)` for each row of contiguous views of one shape.
template <class T, class F, class... Views>
void over_rows(F row, const TensorView& x, const Views&... more) {
  const int64_t n = x.rank() == 0 ? 1 : x.shape.back();
  const int64_t rows = n == 0 ? 0 : x.numel() / n;
  for_each_row_of(
      rows, n, [&](int64_t r) { row(x.ptr<T>() + r * n, (more.template ptr<T>() + r * n)..., n); });
}

void softmax_forward(KernelContext&, const TensorView& x, const TensorView& y) {
  dispatch_floating(x.dtype, "softmax",
                    [&]<class T>(TypeTag<T>) { over_rows<T>(softmax_row<T>, x, y); });
}

void masked_softmax_forward(KernelContext&, const TensorView& x, const TensorView& begin,
                            const TensorView& end, const TensorView& y) {
  dispatch_floating(x.dtype, "masked_softmax", [&]<class T>(TypeTag<T>) {
    const int64_t n = x.shape[1];
    for_each_row_of(x.shape[0], n, [&](int64_t row) {
      const int64_t first = std::clamp<int64_t>(begin.ptr<int32_t>()[row], 0, n);
      const int64_t past = std::clamp<int64_t>(end.ptr<int32_t>()[row], first, n);
      T* const out = y.ptr<T>() + row * n;
      std::fill_n(out, first, T(0));
      softmax_row(x.ptr<T>() + row * n + first, out + first, past - first);
      std::fill(out + past, out + n, T(0));
    });
  });
}

void log_softmax_forward(KernelContext&, const TensorView& x, const TensorView& y) {
  dispatch_floating(x.dtype, "log_softmax",
                    [&]<class T>(TypeTag<T>) { over_rows<T>(log_softmax_row<T>, x, y); });
}

void softmax_backward(KernelContext&, const TensorView& y, const TensorView& g,
                      const TensorView& dx) {
  dispatch_floating(y.dtype, "softmax",
                    [&]<class T>(TypeTag<T>) { over_rows<T>(softmax_backward_row<T>, y, g, dx); });
}

void log_softmax_backward(KernelContext&, const TensorView& y, const TensorView& g,
                          const TensorView& dx) {
  dispatch_floating(y.dtype, "log_softmax", [&]<class T>(TypeTag<T>) {
    over_rows<T>(log_softmax_backward_row<T>, y, g, dx);
  });
}

}  // namespace

void register_softmax() {
  kernels::softmax_forward.set(DeviceType::cpu, in_float_by_rows<softmax_forward, 1>);
  kernels::masked_softmax_forward.set(DeviceType::cpu, in_float<masked_softmax_forward, 3>);
  kernels::softmax_backward.set(DeviceType::cpu, in_float_by_rows<softmax_backward, 2>);
  kernels::log_softmax_forward.set(DeviceType::cpu, in_float_by_rows<log_softmax_forward, 1>);
  kernels::log_softmax_backward.set(DeviceType::cpu, in_float_by_rows<log_softmax_backward, 2>);
}

}  // namespace sash::cpu
