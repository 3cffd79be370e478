#include "../../../ops/kernels/norm.h"

#include <cmath>

#include "../../../core/backend/dispatch.h"
#include "rows.h"

namespace sash::cpu {
namespace {

/// `e`, of n numbers, holds what is scaled at the end: y itself, or memory beside halves.
template <class S, class T = compute_t<S>>
void softmax_row(const S* x, T* e, S* y, int64_t n) {
  constexpr T lowest = -std::numeric_limits<T>::infinity();
  const T max = finite_max(x, n);
  Lanes<T> sum = T(0);
  for_lanes(n, [&](int64_t i, auto lanes) {
    const Lanes<T> value = exp(load(x + i, lanes, lowest) - max);
    sum += value;
    store(e + i, lanes, value);
  });
  const T total = sum_of(sum);
  const T scale = total == 0 ? T(0) : 1 / total;
  for_lanes(n, [&](int64_t i, auto lanes) { store(y + i, lanes, load(e + i, lanes) * scale); });
}

/// Calls `row(r, softmax)` for each of `rows` rows, where `softmax(x, y, count)` takes up to n
/// elements.
template <class S, class F>
void over_softmax_rows(KernelContext& context, int64_t rows, int64_t n, F&& row) {
  using T = compute_t<S>;
  parallel_for(rows, rows_of_piece(n), [&](int64_t begin, int64_t end) {
    const Workspace memory(context, kIsHalf<S> ? n * int64_t{sizeof(T)} : 0);
    const auto softmax = [&](const S* x, S* y, int64_t count) {
      if constexpr (kIsHalf<S>) {
        softmax_row(x, memory.ptr<T>(), y, count);
      } else {
        softmax_row(x, y, y, count);
      }
    };
    for (int64_t r = begin; r < end; ++r) row(r, softmax);
  });
}

template <class S>
void log_softmax_row(const S* x, S* y, int64_t n) {
  using T = compute_t<S>;
  constexpr T lowest = -std::numeric_limits<T>::infinity();
  const T max = finite_max(x, n);
  Lanes<T> sum = T(0);
  for_lanes(n, [&](int64_t i, auto lanes) { sum += exp(load(x + i, lanes, lowest) - max); });
  const T total = sum_of(sum);
  const T log_sum = total == 0 ? T(0) : std::log(total);
  for_lanes(
      n, [&](int64_t i, auto lanes) { store(y + i, lanes, (load(x + i, lanes) - max) - log_sum); });
}

template <class S>
void softmax_backward_row(const S* y, const S* g, S* dx, int64_t n) {
  using T = compute_t<S>;
  Lanes<T> sum = T(0);
  for_lanes(n, [&](int64_t i, auto lanes) { sum += load(y + i, lanes) * load(g + i, lanes); });
  const T dot = sum_of(sum);
  for_lanes(n, [&](int64_t i, auto lanes) {
    store(dx + i, lanes, load(y + i, lanes) * (load(g + i, lanes) - dot));
  });
}

template <class S>
void log_softmax_backward_row(const S* y, const S* g, S* dx, int64_t n) {
  using T = compute_t<S>;
  Lanes<T> sum = T(0);
  for_lanes(n, [&](int64_t i, auto lanes) { sum += load(g + i, lanes); });
  const T total = sum_of(sum);
  for_lanes(n, [&](int64_t i, auto lanes) {
    store(dx + i, lanes, load(g + i, lanes) - exp(load(y + i, lanes)) * total);
  });
}

// Calls `row(x_row, more_rows..., n)` for each row of contiguous views of one shape.
template <class T, class F, class... Views>
void over_rows(F row, View x, const Views&... more) {
  const int64_t n = x.rank() == 0 ? 1 : x.shape.back();
  const int64_t rows = n == 0 ? 0 : x.numel() / n;
  for_each_row_of(
      rows, n, [&](int64_t r) { row(x.ptr<T>() + r * n, (more.template ptr<T>() + r * n)..., n); });
}

void softmax_forward(KernelContext& context, View x, View y) {
  dispatch_with_halves(x.dtype, "softmax", [&]<class S>(TypeTag<S>) {
    const int64_t n = x.rank() == 0 ? 1 : x.shape.back();
    over_softmax_rows<S>(context, n == 0 ? 0 : x.numel() / n, n, [&](int64_t row, auto& softmax) {
      softmax(x.ptr<S>() + row * n, y.ptr<S>() + row * n, n);
    });
  });
}

void masked_softmax_forward(KernelContext& context, View x, View begin, View end, View y) {
  dispatch_with_halves(x.dtype, "masked_softmax", [&]<class S>(TypeTag<S>) {
    const int64_t n = x.shape[1];
    over_softmax_rows<S>(context, x.shape[0], n, [&](int64_t row, auto& softmax) {
      const int64_t first = std::clamp<int64_t>(begin.ptr<int32_t>()[row], 0, n);
      const int64_t past = std::clamp<int64_t>(end.ptr<int32_t>()[row], first, n);
      S* const out = y.ptr<S>() + row * n;
      std::fill_n(out, first, S(0));
      softmax(x.ptr<S>() + row * n + first, out + first, past - first);
      std::fill(out + past, out + n, S(0));
    });
  });
}

void log_softmax_forward(KernelContext&, View x, View y) {
  dispatch_with_halves(x.dtype, "log_softmax",
                       [&]<class T>(TypeTag<T>) { over_rows<T>(log_softmax_row<T>, x, y); });
}

void softmax_backward(KernelContext&, View y, View g, View dx) {
  dispatch_with_halves(y.dtype, "softmax", [&]<class T>(TypeTag<T>) {
    over_rows<T>(softmax_backward_row<T>, y, g, dx);
  });
}

void log_softmax_backward(KernelContext&, View y, View g, View dx) {
  dispatch_with_halves(y.dtype, "log_softmax", [&]<class T>(TypeTag<T>) {
    over_rows<T>(log_softmax_backward_row<T>, y, g, dx);
  });
}

}  // namespace

void register_softmax() {
  kernels::softmax_forward.set(DeviceType::cpu, softmax_forward);
  kernels::masked_softmax_forward.set(DeviceType::cpu, masked_softmax_forward);
  kernels::softmax_backward.set(DeviceType::cpu, softmax_backward);
  kernels::log_softmax_forward.set(DeviceType::cpu, log_softmax_forward);
  kernels::log_softmax_backward.set(DeviceType::cpu, log_softmax_backward);
}

}  // namespace sash::cpu
