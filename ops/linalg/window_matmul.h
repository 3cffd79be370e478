#pragma once

#include "../../tensor/tensor.h"

/// Matrix products within a sliding window, the two halves of local attention, with the windowed
/// scores as a tensor. Memory is that of the operands and O(M w) for the scores; nothing of
/// extent M x M exists.
///
/// Slot j of row i is key i + j - w, so that a row has 2 w + 1 slots; slots whose key is outside
/// [0, M) are hidden. Floating dtypes; float16 and bfloat16 are summed in float32. Differentiable
/// any number of times, each derivative being windowed products again. Any strides.
namespace sash {

struct WindowMatmulOptions {
  bool keys_as_rows = false;  ///< k is [..., M, N] rather than [..., N, M]
  double fill = 0;            ///< of hidden slots; -inf before a softmax, which 0 would give weight
  Tensor mask{};  ///< bool, broadcasts to the result: where false, the slot is hidden too
};

/// a[i, j] = sum over n of q[i, n] k[n, i + j - w]: q [..., M, N] and k [..., N, M], with leading
/// axes that agree, give a [..., M, 2 w + 1].
///
/// `ShapeError` unless the shapes fit, `ValueError` unless 0 <= w <= 2^29, `DTypeError`,
/// `DeviceError`.
SASH_API Tensor window_matmul(const Tensor& q, const Tensor& k, int64_t w,
                              const WindowMatmulOptions& options = {});

/// o[i] = sum over j of a[i, j] v[i + j - w]: a [..., M, 2 w + 1] and v [..., M, N] give
/// o [..., M, N]. Hidden slots of a are not read, whatever they hold, and get a zero gradient.
/// Throws like `window_matmul`.
SASH_API Tensor unwindow_matmul(const Tensor& a, const Tensor& v, int64_t w);

/// Whether slot j of row i has a key: bool [M, 2 w + 1].
SASH_API Tensor window_mask(int64_t m, int64_t w, Device device = kCPU);

namespace detail {

/// Slot s of row i is key i + s - left, for 0 <= s < left + 1 + right. With `lengths`, int32 [B],
/// keys at or past lengths[b] are hidden too; operands are then [B, H, M, N].
struct Window {
  int64_t left = 0, right = 0;
  Tensor lengths{};
};

/// The general forms, for checked arguments. q [..., M, N] and k [..., M, N] to [..., M, slots].
SASH_API Tensor window_scores(const char* op, const Tensor& q, const Tensor& k,
                              const Window& window, double fill);
/// a [..., M, slots] and v [..., M, N] to o[i] = sum over s of a[i, s] v[i + s - left], or, with
/// `transposed`, to o[j] = sum over i of a[i, j - i + left] v[i].
SASH_API Tensor window_sums(const char* op, const Tensor& a, const Tensor& v, const Window& window,
                            bool transposed = false);

/// `ValueError` unless 0 <= size <= 2^29; `what` names it.
SASH_API void check_window(const char* op, const char* what, int64_t size);

}  // namespace detail

}  // namespace sash
