#pragma once

#include "../../tensor/kernels/view.h"

namespace sash::kernels {

/// y[n, k] (int64) = the first c with ends[n, c] > aim[n, k], C if there is none: ends [N, C]
/// ascends along its rows, aim is [N, K]. float64, contiguous.
extern SASH_API Kernel<void(KernelContext&, View ends, View aim, View y)> first_above;

}  // namespace sash::kernels
