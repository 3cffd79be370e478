#pragma once

#include "../../core/kernel.h"
#include "../../core/philox.h"
#include "../../core/tensor_view.h"

namespace sash::kernels {

/// y[i] = x[i] / (1 - p) if the 32 bits of element i (row-major) are at least
/// `dropout_threshold(p)`, else x[i] 0; zeros for p = 1. Views of one shape and floating dtype.
extern SASH_API
    Kernel<void(KernelContext&, const TensorView& x, const TensorView& y, double p, PhiloxState)>
        dropout;

}  // namespace sash::kernels
