#pragma once

#include "../../core/philox.h"
#include "../../tensor/kernels/view.h"

/// Layer normalisation of the rows of a matrix. All views are contiguous and of one floating dtype;
/// x, y, g and dx are [R, D], weight, bias and their gradients [D], mean and rstd [R]. Beside
/// halves, mean and rstd are float32.
namespace sash::kernels {

/// y = (x - mean) rstd weight + bias with the mean and rstd = 1 / sqrt(var + eps) of each row.
/// weight and bias may be null views (1 and 0), and y may be x.
extern SASH_API Kernel<void(KernelContext&, View x, View weight, View bias, View y, View mean,
                            View rstd, double eps)>
    layer_norm_forward;

/// Sets `chunks` to the number of parts in which a backward kernel sums over the rows of x.
extern SASH_API Kernel<void(KernelContext&, View x, int64_t& chunks)> layer_norm_chunks;

/// With z = (x - mean) rstd and h = g weight: dx = rstd (h - mean(h) - z mean(h z)), and of each
/// chunk of rows the sums of g z and of g, `sums` [chunks, 2, D] in the dtype of mean. weight may
/// be a null view, and so may each output that is not wanted.
extern SASH_API Kernel<void(KernelContext&, View x, View weight, View mean, View rstd, View g,
                            View dx, View sums)>
    layer_norm_backward;

/// dweight and dbias: the chunks' sums, added up in order. Either may be a null view.
extern SASH_API Kernel<void(KernelContext&, View sums, View dweight, View dbias)>
    add_layer_norm_chunks;

/// Dropout as the slot `dropout` has it; nothing is dropped, and no number drawn, if p = 0.
struct BranchDropout {
  double p = 0;
  PhiloxState state;
};

/// sum = residual + dropout(branch), then y, mean and rstd as above of x = sum.
extern SASH_API
    Kernel<void(KernelContext&, View branch, View residual, View weight, View bias,
                const BranchDropout&, View sum, View y, View mean, View rstd, double eps)>
        dropout_add_layer_norm_forward;

/// dresidual = dsum + the dx above of x = sum, dbranch = dropout(dresidual), and `sums` as above.
/// dsum may be a null view (0), and so may dbranch and sums.
extern SASH_API
    Kernel<void(KernelContext&, View sum, View weight, View mean, View rstd, View g, View dsum,
                const BranchDropout&, View dresidual, View dbranch, View sums)>
        dropout_add_layer_norm_backward;

// Softmax over the last axis. All views are contiguous, of one shape and floating dtype.

/// y = exp(x - max) / sum exp(x - max); a row of only -inf gives zeros. y may be x.
extern SASH_API Kernel<void(KernelContext&, View x, View y)> softmax_forward;

/// Softmax of columns [begin, end) of each row of x [R, N], and 0 in the others, whatever x has
/// there; begin and end are int32 [R].
extern SASH_API Kernel<void(KernelContext&, View x, View begin, View end, View y)>
    masked_softmax_forward;

/// dx = y (g - sum g y). dx may be y.
extern SASH_API Kernel<void(KernelContext&, View y, View g, View dx)> softmax_backward;

/// y = x - max - log sum exp(x - max); a row of only -inf stays as it is.
extern SASH_API Kernel<void(KernelContext&, View x, View y)> log_softmax_forward;

/// dx = g - exp(y) sum g.
extern SASH_API Kernel<void(KernelContext&, View y, View g, View dx)> log_softmax_backward;

// Root mean square normalisation of the rows of a matrix. All views are contiguous and of one
// floating dtype; matrices are [R, D], weight and dweight [D], rstd [R] (float32 beside halves).
// w is weight, 1 + weight with `unit_offset`, or 1 if weight is a null view.

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

/// y = (x - mean) scale + shift: x and y are [N, C, L], the others [C], all contiguous and of one
/// dtype, float32 or float64. y may be x.
extern SASH_API Kernel<void(KernelContext&, View x, View mean, View scale, View shift, View y)>
    scale_channels;

}  // namespace sash::kernels
