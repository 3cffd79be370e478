#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "../../../../tensor/kernels/view.h"

namespace sash::cuda {

/// The bounds of query blocks: summary[b, h, m] = {min lo, max lo, min hi, max hi}
/// over the ranges [lo, hi) of queries [m query_rows, (m + 1) query_rows). `bounds` is int32
/// [B or 1, H or 1, S_q, 2], contiguous, `summary` [B or 1, H or 1, ceil(S_q / query_rows)].
///
/// `seen_by` [B or 1, H or 1, key_blocks], if it is not null, gets for each block of 64 keys the
/// range [m, n) of the query blocks that may see the block, as {m, -n}. If no query block may see
/// it, then m >= n.
void summarise_bounds(const KernelContext& context, View bounds, int64_t query_rows, int4* summary,
                      int2* seen_by = nullptr, int64_t key_blocks = 0);

}  // namespace sash::cuda
