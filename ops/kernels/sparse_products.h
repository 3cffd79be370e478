#pragma once

#include "../../core/backend/kernel.h"
#include "../../core/backend/tensor_view.h"

/// Products of rows with the rows of a table that a list names. Each is a derivative of
///
///     sum over g, n, j of w[g, n, j] x[g, n] . table[g / r, index[g, n, j]].
///
/// x is [G, N, D], w and index (int64) [G, N, K], table [G / r, S, D]; contiguous, one floating
/// dtype, halves summed in float32. An index of -1 is no row: it gives 0 and adds nothing. CUDA
/// reports other indices outside [0, S) at the next synchronisation.
namespace sash::kernels {

/// w[g, n, j] = x[g, n] . table[g / r, index[g, n, j]].
extern SASH_API Kernel<void(KernelContext&, const TensorView& x, const TensorView& table,
                            const TensorView& index, const TensorView& w)>
    sparse_dot;

/// x[g, n] = sum over j of w[g, n, j] table[g / r, index[g, n, j]].
extern SASH_API Kernel<void(KernelContext&, const TensorView& w, const TensorView& table,
                            const TensorView& index, const TensorView& x)>
    sparse_rows;

/// table[t, s] = sum of w[g, n, j] x[g, n] over g / r == t, index[g, n, j] == s, in the order of
/// g, n, j.
extern SASH_API Kernel<void(KernelContext&, const TensorView& w, const TensorView& x,
                            const TensorView& index, const TensorView& table)>
    sparse_table;

}  // namespace sash::kernels
