#pragma once

#include "attention_mask.h"

namespace sash {

/// How much of the scores is visible.
struct MaskStatistics {
  int64_t visible_pairs = 0;  ///< over all batches and heads
  int64_t listed_blocks =
      0;  ///< blocks of 64 x 64 with a visible pair; the work is proportional to them
  int64_t full_blocks =
      0;  ///< listed blocks whose pairs are all visible, up to the last query and key
  int64_t all_blocks = 0;  ///< blocks of dense attention

  double share_of_dense() const {
    return all_blocks == 0 ? 0
                           : static_cast<double>(listed_blocks) / static_cast<double>(all_blocks);
  }
};

/// Counts what attention with `mask` computes. Makes neither a matrix nor a list of blocks: a run
/// of blocks that are fully visible or hidden takes one step, each other block one step. Without a
/// shape, batches and heads are those of the mask's tensors. `ValueError` for a negative length,
/// 2^31 block rows or a count of 2^63.
SASH_API MaskStatistics mask_statistics(const AttentionMask& mask, const MaskShape& shape);
SASH_API MaskStatistics mask_statistics(const AttentionMask& mask, int64_t queries, int64_t keys);

}  // namespace sash
