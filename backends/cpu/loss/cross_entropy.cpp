#include "../../../ops/kernels/loss.h"

#include <cmath>

#include "../../../core/backend/dispatch.h"
#include "../norm/rows.h"
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

/// What all rows of a call share.
struct Shared {
  View weight, totals;
  const Rule& rule;
};

void forward_rows(KernelContext&, View logits, View targets, View losses, View stats,
                  const Shared& shared) {
  dispatch_floating(logits.dtype, "cross_entropy", [&]<class T>(TypeTag<T>) {
    const int64_t n = logits.shape[1];
    const T* const w = shared.weight.ptr<T>();
    for_each_row_of(logits.shape[0], n, [&](int64_t row) {
      losses.ptr<T>()[row] =
          loss_of_row(logits.ptr<T>() + row * n, n, targets.ptr<int64_t>()[row], w,
                      shared.totals.ptr<T>()[1], stats.ptr<T>() + 2 * row, shared.rule);
    });
  });
}

void backward_rows(KernelContext&, View logits, View targets, View stats, View g, View dlogits,
                   const Shared& shared) {
  dispatch_floating(logits.dtype, "cross_entropy", [&]<class T>(TypeTag<T>) {
    const int64_t n = logits.shape[1];
    const T* const w = shared.weight.ptr<T>();
    const T* const totals = shared.totals.ptr<T>();
    const T divisor = shared.rule.mean ? totals[0] : T(1);
    for_each_row_of(logits.shape[0], n, [&](int64_t row) {
      gradient_of_row(logits.ptr<T>() + row * n, n, targets.ptr<int64_t>()[row], w, totals[1],
                      stats.ptr<T>() + 2 * row, g.ptr<T>()[row * g.strides[0]] / divisor,
                      dlogits.ptr<T>() + row * n, shared.rule);
    });
  });
}

void cross_entropy_forward(KernelContext& context, View logits, View targets, View weight,
                           View losses, View stats, View totals, const Rule& rule) {
  dispatch_floating(totals.dtype, "cross_entropy", [&]<class T>(TypeTag<T>) {
    sum_weights(targets, weight, logits.shape[1], totals.ptr<T>(), rule);
  });
  in_float_pieces<forward_rows>(context, logits, targets, losses, stats, {weight, totals, rule});
}

void cross_entropy_backward(KernelContext& context, View logits, View targets, View weight,
                            View stats, View g, View totals, View dlogits, const Rule& rule) {
  TensorView of_rows = g;
  of_rows.shape = targets.shape;
  of_rows.strides = {g.numel() == 1 ? 0 : 1};
  in_float_pieces<backward_rows, 4>(context, logits, targets, stats, of_rows, dlogits,
                                    {weight, totals, rule});
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
  kernels::cross_entropy_forward.set(DeviceType::cpu, cross_entropy_forward);
  kernels::cross_entropy_backward.set(DeviceType::cpu, cross_entropy_backward);
}

void register_cross_entropy_in_place() {
  kernels::cross_entropy_in_place.set(DeviceType::cpu, cross_entropy_in_place);
}

}  // namespace sash::cpu
