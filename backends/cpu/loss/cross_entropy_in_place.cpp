#include <cmath>

#include "../../../core/backend/dispatch.h"
#include "../../../ops/kernels/loss.h"
#include "../norm/rows.h"
#include "../shape/halves.h"

namespace sash::cpu {
namespace {

using Rule = kernels::CrossEntropyRule;

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

void register_cross_entropy_in_place() {
  kernels::cross_entropy_in_place.set(DeviceType::cpu, cross_entropy_in_place);
}

}  // namespace sash::cpu
