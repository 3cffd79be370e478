#include "../../../ops/kernels/loss.h"

#include <cmath>

#include "../../../core/backend/dispatch.h"
#include "../norm/rows.h"

namespace sash::cpu {
namespace {

using Rule = kernels::CrossEntropyRule;

template <class T>
T loss_of_row(const T* x, int64_t n, int64_t target, T* stats, const Rule& rule) {
  constexpr T lowest = -std::numeric_limits<T>::infinity();
  const T max = finite_max(x, n);
  Lanes<T> sum = T(0);
  for_lanes(n, [&](int64_t i, auto lanes) { sum += exp(load(x + i, lanes, lowest) - max); });
  const T log_sum = std::log(sum_of(sum));
  stats[0] = max;
  stats[1] = log_sum;
  if (target == rule.ignore_index) return 0;
  const T nll = log_sum - (x[target] - max);
  if (rule.smoothing == 0) return nll;
  Lanes<T> shifted = T(0);
  for_lanes(n, [&](int64_t i, auto lanes) { shifted += load(x + i, lanes, max) - max; });
  const T smooth = log_sum - sum_of(shifted) / static_cast<T>(n);
  const T s = static_cast<T>(rule.smoothing);
  return (1 - s) * nll + s * smooth;
}

template <class T>
void gradient_of_row(const T* x, int64_t n, int64_t target, const T* stats, T g, T* dx,
                     const Rule& rule) {
  if (target == rule.ignore_index) {
    std::fill_n(dx, n, T(0));
    return;
  }
  const T max = stats[0], log_sum = stats[1], s = static_cast<T>(rule.smoothing);
  const T everywhere = s / static_cast<T>(n);
  for_lanes(n, [&](int64_t i, auto lanes) {
    const Lanes<T> p = exp((load(x + i, lanes) - max) - log_sum);
    store<T>(dx + i, lanes, (p - everywhere) * g);
  });
  dx[target] -= (1 - s) * g;
}

void cross_entropy_forward(KernelContext&, const TensorView& logits, const TensorView& targets,
                           const TensorView& losses, const TensorView& stats,
                           const TensorView& count, const Rule& rule) {
  dispatch_floating(logits.dtype, "cross_entropy", [&]<class T>(TypeTag<T>) {
    const int64_t rows = logits.shape[0], n = logits.shape[1];
    const int64_t* const target = targets.ptr<int64_t>();
    for_each_row_of(rows, n, [&](int64_t row) {
      losses.ptr<T>()[row] =
          loss_of_row(logits.ptr<T>() + row * n, n, target[row], stats.ptr<T>() + 2 * row, rule);
    });
    const int64_t ignored = std::count(target, target + rows, rule.ignore_index);
    *count.ptr<T>() = static_cast<T>(rows - ignored);
  });
}

void cross_entropy_backward(KernelContext&, const TensorView& logits, const TensorView& targets,
                            const TensorView& stats, const TensorView& g, const TensorView& count,
                            const TensorView& dlogits, const Rule& rule) {
  dispatch_floating(logits.dtype, "cross_entropy", [&]<class T>(TypeTag<T>) {
    const int64_t n = logits.shape[1];
    const T divisor = count.data ? *count.ptr<T>() : T(1);
    const int64_t step = g.numel() == 1 ? 0 : 1;
    for_each_row_of(logits.shape[0], n, [&](int64_t row) {
      gradient_of_row(logits.ptr<T>() + row * n, n, targets.ptr<int64_t>()[row],
                      stats.ptr<T>() + 2 * row, g.ptr<T>()[row * step] / divisor,
                      dlogits.ptr<T>() + row * n, rule);
    });
  });
}

}  // namespace

void register_cross_entropy() {
  kernels::cross_entropy_forward.set(DeviceType::cpu, cross_entropy_forward);
  kernels::cross_entropy_backward.set(DeviceType::cpu, cross_entropy_backward);
}

}  // namespace sash::cpu
