#include "../../../ops/kernels/loss.h"

#include "../../../core/backend/dispatch.h"
#include "../elementwise/elementwise.h"
#include "../norm/rows.h"
#include "../shape/in_float.h"

namespace sash::cpu {
namespace {

/// Sum of (a - b)^2: in T over runs of 1024 elements, in float64 over the runs.
template <class T>
double sum_of_squares(const T* a, const T* b, int64_t n) {
  constexpr int64_t run = 1024;
  double total = 0;
  for (int64_t at = 0; at < n; at += run) {
    Lanes<T> sum = T(0);
    for_lanes(std::min(run, n - at), [&](int64_t i, auto lanes) {
      const Lanes<T> difference = load(a + at + i, lanes) - load(b + at + i, lanes);
      sum += difference * difference;
    });
    total += static_cast<double>(sum_of(sum));
  }
  return total;
}

void mse_loss_forward(KernelContext& context, View a, View b, View y, double scale) {
  dispatch_floating(a.dtype, "mse_loss", [&]<class T>(TypeTag<T>) {
    const int64_t n = a.numel();
    const int64_t pieces = (n + kPiece - 1) / kPiece;
    const Workspace scratch(context, pieces * int64_t{sizeof(double)});
    double* const partial = scratch.ptr<double>();
    parallel_for(n, kPiece, [&](int64_t begin, int64_t end) {
      partial[begin / kPiece] = sum_of_squares(a.ptr<T>() + begin, b.ptr<T>() + begin, end - begin);
    });
    double total = 0;
    for (int64_t i = 0; i < pieces; ++i) total += partial[i];
    *y.ptr<T>() = static_cast<T>(total * scale);
  });
}

void mse_loss_backward(KernelContext&, View a, View b, View g, View da, double scale) {
  dispatch_floating(a.dtype, "mse_loss", [&]<class T>(TypeTag<T>) {
    const T factor = static_cast<T>(2 * scale);
    elementwise<T, T, T, T>([factor](auto out, auto x, auto target,
                                     auto grad) { out = (x - target) * (grad * factor); },
                            da, a, b, g);
  });
}

}  // namespace

void register_mse_loss() {
  kernels::mse_loss_forward.set(DeviceType::cpu, in_float<mse_loss_forward, 2>);
  kernels::mse_loss_backward.set(DeviceType::cpu, in_float<mse_loss_backward, 3>);
}

}  // namespace sash::cpu
