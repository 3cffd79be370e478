#pragma once

#include <optional>

#include "../../tensor/kernels/view.h"
#include "glu.h"

namespace sash::kernels {

/// y = x w' + bias: x [rows, in], w [out, in], bias [out] (contiguous) or null, y [rows, out]
/// (contiguous); one floating dtype. x and w have any strides.
extern SASH_API Kernel<void(KernelContext&, View x, View w, const TensorView* bias, View y)>
    linear_forward;

/// y = gelu(z) of z = x w' + bias, as above. z [rows, out] (contiguous) is a null view if it is not
/// wanted; `tanh` as in `gelu_forward`.
extern SASH_API
    Kernel<void(KernelContext&, View x, View w, const TensorView* bias, View z, View y, bool tanh)>
        linear_gelu_forward;

/// dz = (g w) gelu'(z) and dbias [n] = the sums of its columns: g [rows, out] and w [out, n] have
/// any strides, z and dz [rows, n] are contiguous; dbias may be a null view.
extern SASH_API Kernel<void(KernelContext&, View g, View w, View z, View dz, View dbias, bool tanh)>
    linear_gelu_gradient;

/// The ops before and after a product of few rows. Null: no such op.
struct LinearStepParams {
  const TensorView* norm_weight = nullptr;  ///< [in], contiguous: x is normalised as by `rms_norm`
  double eps = 0;
  bool unit_offset = false;
  const TensorView* bias = nullptr;      ///< [out], contiguous
  std::optional<Gate> gate{};            ///< if set, out is 2 F and y has F columns
  const TensorView* residual = nullptr;  ///< shape of y, contiguous: added at the end
  bool weight_at_rest = false;           ///< see `LinearStepOptions`
};

/// y = residual + gate(norm(x) w' + bias): x [rows, in], of 1 to 4 rows, and w [out, in] have unit
/// stride along rows of whole vectors of 16 bytes; y is contiguous. float32 or a half; what
/// separate kernels would store is rounded. A normalised x takes at most 47 KiB.
extern SASH_API Kernel<void(KernelContext&, View x, View w, const LinearStepParams&, View y)>
    linear_step;

/// c = alpha a b + beta c: a [..., M, K], b [..., K, N], c [..., M, N], one floating dtype, but c
/// may be float32 beside halves; or int64, with alpha = 1 and beta = 0 alone, modulo 2^64. The
/// batch axes agree (stride 0 where an operand is broadcast); any strides are taken, transposed
/// operands without a copy. c has unit stride along one of its last two axes, and is not read if
/// beta = 0.
extern SASH_API Kernel<void(KernelContext&, View a, View b, View c, double alpha, double beta)>
    matmul;

// Products within a window (ops/linalg/window_matmul.h). q, k, v [B, H, M, N] have any strides, a
// [B, H, M, left + 1 + right] and o [B, H, M, N] are contiguous; one floating dtype, halves summed
// in float32.

/// Slot s of row i is key i + s - left. A slot is hidden if its key is outside [0, M), or at or
/// past lengths[b].
struct WindowParams {
  int64_t left = 0, right = 0;
  const TensorView* lengths = nullptr;  ///< int32 [B], contiguous; or null

  int64_t slots() const { return left + 1 + right; }
};

/// a[i, s] = q[i] . k[i + s - left]; `fill` in hidden slots.
extern SASH_API
    Kernel<void(KernelContext&, View q, View k, const WindowParams& window, double fill, View a)>
        window_matmul;

/// o[i] = sum over s of a[i, s] v[i + s - left]; `transposed`: o[j] = sum over i of
/// a[i, j - i + left] v[i]. Hidden slots are not read, whatever they hold.
extern SASH_API Kernel<void(KernelContext&, View a, View v, const WindowParams& window,
                            bool transposed, View o)>
    unwindow_matmul;

}  // namespace sash::kernels
