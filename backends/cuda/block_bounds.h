#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "../../core/kernel.h"
#include "../../core/tensor_view.h"

namespace sash::cuda {

/// What the queries of a block have in common: summary[b, h, m] = {min lo, max lo, min hi, max hi}
/// over the ranges [lo, hi) of queries [m query_rows, (m + 1) query_rows). `bounds` is int32
/// [B or 1, H or 1, S_q, 2], contiguous, `summary` [B or 1, H or 1, ceil(S_q / query_rows)].
void summarise_bounds(const KernelContext& context, const TensorView& bounds, int64_t query_rows,
                      int4* summary);

}  // namespace sash::cuda
