#pragma once

#include "../../core/kernel.h"
#include "../../core/tensor_view.h"

/// Rows of a table by int64 index [N]. All views are contiguous.
namespace sash::kernels {

/// y[n] = weight[index[n]]: weight is [V, D], y [N, D]; any dtype.
extern SASH_API Kernel<void(KernelContext&, const TensorView& weight, const TensorView& index,
                            const TensorView& y)>
    embedding_forward;

/// dweight[v] = sum of g[n] over index[n] == v, in the order of n: g is [N, D], dweight [V, D];
/// floating.
extern SASH_API Kernel<void(KernelContext&, const TensorView& g, const TensorView& index,
                            const TensorView& dweight)>
    embedding_backward;

}  // namespace sash::kernels
