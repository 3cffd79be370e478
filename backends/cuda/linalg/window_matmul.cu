#include "window_matmul.h"

#include "../../../core/error.h"

namespace sash::cuda {
namespace {

using kernels::WindowParams;

bool is_half(View x) { return x.dtype == DType::float16 || x.dtype == DType::bfloat16; }

/// Kernels count rows and slots in 32 bits.
void check_rows(const char* op, View rows) {
  constexpr int64_t most = int64_t{1} << 30;
  if (rows.shape[2] <= most) return;
  throw ValueError(op, "at most 2^30 rows", std::to_string(rows.shape[2]));
}

void window_matmul(KernelContext& context, View q, View k, const WindowParams& window, double fill,
                   View a) {
  if (a.numel() == 0) return;
  check_rows("window_matmul", q);
  if (!is_half(q) || !window_scores_mma_takes(q)) {
    return window_scores_simple(context, q, k, window, fill, a);
  }
  window_scores_mma(context, q, k, window, fill, a);
}

void unwindow_matmul(KernelContext& context, View a, View v, const WindowParams& window,
                     bool transposed, View o) {
  if (o.numel() == 0) return;
  check_rows("unwindow_matmul", v);
  if (!is_half(v)) return window_sums_simple(context, a, v, window, transposed, o);
  window_sums_mma(context, a, v, window, transposed, o);
}

}  // namespace

void register_window_matmul() {
  kernels::window_matmul.set(DeviceType::cuda, window_matmul);
  kernels::unwindow_matmul.set(DeviceType::cuda, unwindow_matmul);
}

}  // namespace sash::cuda
