#pragma once

#include <climits>

#include "../../../../ops/kernels/attention.h"

namespace sash::cuda {

/// The first and the last block that row `row` of a map lists, or {0, -1} if it lists none. A row
/// has two ascending runs, the partial and the full blocks.
__device__ inline int2 listed_range(const kernels::BlockList& list, int64_t row) {
  const kernels::BlockRow& runs = list.rows[row];
  int2 range = make_int2(INT_MAX, -1);
  for (const kernels::BlockRun& run : {runs.partial, runs.full}) {
    if (run.count == 0) continue;
    range.x = min(range.x, list.block_at(run.first));
    range.y = max(range.y, list.block_at(run.first + run.count - 1));
  }
  return range.y < 0 ? make_int2(0, -1) : range;
}

}  // namespace sash::cuda
