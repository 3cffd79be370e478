#pragma once

#include "multihead_attention.h"

namespace sash::nn {

/// `MultiheadAttention` to a window of blocks, global blocks and random ones (Zaheer et al., "Big
/// Bird", NeurIPS 2020), at a cost linear in S:
///
///     nn::BigBirdAttention attention(256, 8, {.block = 64, .window = 3, .global = 2});
///
/// Parameters and calls are those of `MultiheadAttention`.
class SASH_API BigBirdAttention : public MultiheadAttention {
 public:
  /// `ValueError` as `AttentionMask::bigbird` and `MultiheadAttention`.
  BigBirdAttention(int64_t dim, int64_t heads, const BigBirdOptions& pattern = {},
                   const MultiheadAttentionOptions& options = {})
      : MultiheadAttention(dim, heads, options, AttentionMask::bigbird(pattern)) {}
};

}  // namespace sash::nn
