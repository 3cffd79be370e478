#pragma once

#include "multihead_attention.h"

namespace sash::nn {

namespace detail {
inline MultiheadAttentionOptions with_attention(MultiheadAttentionOptions options,
                                                const std::string& kind) {
  options.attention = kind;
  return options;
}
}  // namespace detail

/// `MultiheadAttention` of each query to its own block of keys, causally, and to the earlier blocks
/// whose mean key has the highest product with the query, for each head (Lu et al., "MoBA: Mixture
/// of block attention for long-context LLMs", 2025). Always causal. Parameters and calls are those
/// of `MultiheadAttention`; its caches keep the means of the blocks. `options.attention` is
/// replaced by "moba:BLOCK,top_k=K", which names the same. Dropout makes each call compile the
/// choice as a pattern (`AttentionMask::selected`).
class SASH_API MobaAttention : public MultiheadAttention {
 public:
  /// `ValueError` unless block and top_k are at least 1, and as `MultiheadAttention`.
  MobaAttention(int64_t dim, int64_t heads, const MobaOptions& pattern = {},
                const MultiheadAttentionOptions& options = {})
      : MultiheadAttention(dim, heads, detail::with_attention(options, pattern.to_string())) {}
};

/// `MultiheadAttention` by three branches (Yuan et al., "Native sparse attention: hardware-aligned
/// and natively trainable sparse attention", 2025), always causal:
///
///     o = g_1 attention(q, pooled k, pooled v)    of the blocks that have ended at the query
///       + g_2 attention(q, k, v)                  in top_k blocks: `select_blocks`, probabilities
///       + g_3 attention(q, k, v)                  in a window,
///
/// with gates g = sigmoid(gate(x)) for each head and token. All query heads of a key head see the
/// same blocks. Blocks do not overlap, and the branches share keys and values (in the paper each
/// branch has its own). Pooled keys and values are means, or learnt: weighted sums with a weight
/// for each head, place in the block and feature.
///
/// It has the parameters of `MultiheadAttention`, and a child `sparse` with the parameters of
/// `NativeSparseBranches`. Self-attention alone. Caches keep the pooled keys and values. Dropout as
/// in `MobaAttention`.
/// `options.attention` is replaced by "nsa:BLOCK,top_k=K,window=W,...", which names the same.
class SASH_API NativeSparseAttention : public MultiheadAttention {
 public:
  /// `ValueError` unless block and window are at least 1, first and neighbours not negative, and
  /// top_k above their sum; and as `MultiheadAttention`.
  NativeSparseAttention(int64_t dim, int64_t heads, const NativeSparseOptions& pattern = {},
                        const MultiheadAttentionOptions& options = {})
      : MultiheadAttention(dim, heads, detail::with_attention(options, pattern.to_string())) {}
};

}  // namespace sash::nn
