#pragma once

#include <climits>

#include "../../../../ops/kernels/attention.h"

namespace sash::cuda {

/// The first and the last block that row `row` of a map lists, or {0, -1}: the least and the
/// greatest of two ascending runs, the partial and the full ones.
__device__ inline int2 listed_range(const kernels::BlockList& list, int64_t row) {
  int2 range = make_int2(INT_MAX, -1);
  const int start = list.start[row], full = list.full_start[row], end = list.start[row + 1];
  if (full > start) range = make_int2(list.block[start], list.block[full - 1]);
  if (end > full) {
    range.x = min(range.x, list.block[full]);
    range.y = max(range.y, list.block[end - 1]);
  }
  return end > start ? range : make_int2(0, -1);
}

}  // namespace sash::cuda
