#pragma once

#include "../../tensor/kernels/view.h"

/// Root mean square normalisation of the rows of a matrix. All views are contiguous and of one
/// floating dtype; matrices are [R, D], weight and dweight [D], rstd [R] (float32 beside halves).
/// w is weight, 1 + weight with `unit_offset`, or 1 if weight is a null view.
namespace sash::kernels {

/// y = x rstd w with rstd = 1 / sqrt(mean(x^2) + eps) of each row. With a residual, x is replaced
/// by the sum of both, which is written to `sum`; else both are null views.
extern SASH_API Kernel<void(KernelContext&, View x, View residual, View weight, View sum, View y,
                            View rstd, double eps, bool unit_offset)>
    rms_norm_forward;

/// With z = x rstd and h = g w: dx = dsum + rstd (h - z mean(h z)), dweight = sum over rows of g z.
/// dsum may be a null view (0), and so may each output that is not wanted.
extern SASH_API Kernel<void(KernelContext&, View x, View weight, View rstd, View g, View dsum,
                            View dx, View dweight, bool unit_offset)>
    rms_norm_backward;

}  // namespace sash::kernels
