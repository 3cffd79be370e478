#include "../../../ops/kernels/loss.h"

#include <cmath>

#include "../../../core/backend/dispatch.h"
#include "../norm/rows.h"
#include "../shape/halves.h"
#include "../shape/in_float.h"

namespace sash::cpu {
namespace {

using Rule = kernels::CrossEntropyRule;

template <class T>
T loss_of_row(const T* x, int64_t n, int64_t target, const T* weight, T weight_sum, T* stats,
              const Rule& rule) {
  constexpr T lowest = -std::numeric_limits<T>::infinity();
  const T max = finite_max(x, n);
  Lanes<T> sum = T(0);
  for_lanes(n, [&](int64_t i, auto lanes) { sum += exp(load(x + i, lanes, lowest) - max); });
  const T log_sum = std::log(sum_of(sum));
  stats[0] = max;
  stats[1] = log_sum;
  if (target == rule.ignore_index) return 0;
  const T nll = (weight ? weight[target] : T(1)) * (log_sum - (x[target] - max));
  if (rule.smoothing == 0) return nll;
  Lanes<T> shifted = T(0);
  for_lanes(n, [&](int64_t i, auto lanes) {
    const Lanes<T> d = load(x + i, lanes, max) - max;
    shifted += weight ? d * load(weight + i, lanes) : d;
  });
  const T smooth = (weight_sum * log_sum - sum_of(shifted)) / static_cast<T>(n);
  const T s = static_cast<T>(rule.smoothing);
  return (1 - s) * nll + s * smooth;
}

template <class T>
void gradient_of_row(const T* x, int64_t n, int64_t target, const T* weight, T weight_sum,
                     const T* stats, T g, T* dx, const Rule& rule) {
  if (target == rule.ignore_index) {
    std::fill_n(dx, n, T(0));
    return;
  }
  const T max = stats[0], log_sum = stats[1];
  const T share = static_cast<T>(rule.smoothing) / static_cast<T>(n);
  const T there = static_cast<T>(1 - rule.smoothing) * (weight ? weight[target] : T(1));
  const T everywhere = weight ? there + share * weight_sum : T(1);
  for_lanes(n, [&](int64_t i, auto lanes) {
    const Lanes<T> p = exp((load(x + i, lanes) - max) - log_sum) * everywhere;
    const Lanes<T> smooth = weight ? load(weight + i, lanes) * share : Lanes<T>(share);
    store<T>(dx + i, lanes, (p - smooth) * g);
  });
  dx[target] -= there * g;
}

/// Of targets that are not ignored, and of all classes.
template <class T>
void sum_weights(View targets, View weight, int64_t classes, T* totals, const Rule& rule) {
  const int64_t* const target = targets.ptr<int64_t>();
  const int64_t rows = targets.numel();
  if (!weight.data) {
    totals[0] = static_cast<T>(rows - std::count(target, target + rows, rule.ignore_index));
    totals[1] = static_cast<T>(classes);
    return;
  }
  const T* const w = weight.ptr<T>();
  double counted = 0, all = 0;
  for (int64_t row = 0; row < rows; ++row) {
    if (target[row] != rule.ignore_index) counted += static_cast<double>(w[target[row]]);
  }
  for (int64_t c = 0; c < classes; ++c) all += static_cast<double>(w[c]);
  totals[0] = static_cast<T>(counted);
  totals[1] = static_cast<T>(all);
}

void cross_entropy_forward(KernelContext&, View logits, View targets, View weight, View losses,
                           View stats, View totals, const Rule& rule) {
  dispatch_floating(logits.dtype, "cross_entropy", [&]<class T>(TypeTag<T>) {
    const int64_t rows = logits.shape[0], n = logits.shape[1];
    sum_weights(targets, weight, n, totals.ptr<T>(), rule);
    const T* const w = weight.data ? weight.ptr<T>() : nullptr;
    for_each_row_of(rows, n, [&](int64_t row) {
      losses.ptr<T>()[row] = loss_of_row(logits.ptr<T>() + row * n, n, targets.ptr<int64_t>()[row],
                                         w, totals.ptr<T>()[1], stats.ptr<T>() + 2 * row, rule);
    });
  });
}

void cross_entropy_backward(KernelContext&, View logits, View targets, View weight, View stats,
                            View g, View totals, View dlogits, const Rule& rule) {
  dispatch_floating(logits.dtype, "cross_entropy", [&]<class T>(TypeTag<T>) {
    const int64_t n = logits.shape[1];
    const T* const w = weight.data ? weight.ptr<T>() : nullptr;
    const T divisor = rule.mean ? *totals.ptr<T>() : T(1);
    const int64_t step = g.numel() == 1 ? 0 : 1;
    for_each_row_of(logits.shape[0], n, [&](int64_t row) {
      gradient_of_row(logits.ptr<T>() + row * n, n, targets.ptr<int64_t>()[row], w,
                      totals.ptr<T>()[1], stats.ptr<T>() + 2 * row,
                      g.ptr<T>()[row * step] / divisor, dlogits.ptr<T>() + row * n, rule);
    });
  });
}

/// The loss of a row, and x = its gradient.
template <class T>
T replace_row(T* x, int64_t n, int64_t target, const Rule& rule) {
  if (target == rule.ignore_index) {
    std::fill_n(x, n, T(0));
    return 0;
  }
  constexpr T lowest = -std::numeric_limits<T>::infinity();
  const T max = finite_max(x, n), s = static_cast<T>(rule.smoothing);
  const T chosen = x[target] - max;
  Lanes<T> sum = T(0), shifted = T(0);
  for_lanes(n, [&](int64_t i, auto lanes) {
    if (s != 0) shifted += load(x + i, lanes, max) - max;
    const Lanes<T> e = exp(load(x + i, lanes, lowest) - max);
    sum += e;
    store<T>(x + i, lanes, e);
  });
  const T total = sum_of(sum), log_sum = std::log(total);
  const T scale = 1 / total, everywhere = s / static_cast<T>(n);
  for_lanes(n, [&](int64_t i, auto lanes) {
    store<T>(x + i, lanes, load(x + i, lanes) * scale - everywhere);
  });
  x[target] -= 1 - s;
  const T loss = log_sum - chosen;
  if (s == 0) return loss;
  return (1 - s) * loss + s * (log_sum - sum_of(shifted) / static_cast<T>(n));
}

void cross_entropy_in_place(KernelContext& context, View given, View targets, View losses,
                            const Rule& rule, int64_t) {
  FloatResult wide(context, given);
  if (is_half(given.dtype)) kernels::copy(context, given, wide.view());
  const TensorView& logits = wide.view();
  dispatch_floating(logits.dtype, "linear_cross_entropy", [&]<class T>(TypeTag<T>) {
    const int64_t n = logits.shape[1];
    for_each_row_of(logits.shape[0], n, [&](int64_t row) {
      losses.ptr<T>()[row] =
          replace_row(logits.ptr<T>() + row * n, n, targets.ptr<int64_t>()[row], rule);
    });
  });
  wide.write();
}

}  // namespace

void register_cross_entropy() {
  kernels::cross_entropy_forward.set(DeviceType::cpu, in_float<cross_entropy_forward>);
  kernels::cross_entropy_backward.set(DeviceType::cpu, in_float<cross_entropy_backward, 6>);
}

void register_cross_entropy_in_place() {
  kernels::cross_entropy_in_place.set(DeviceType::cpu, cross_entropy_in_place);
}

}  // namespace sash::cpu
