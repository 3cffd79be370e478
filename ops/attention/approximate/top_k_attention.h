#pragma once

#include <optional>

#include "../mask/attention_mask.h"

namespace sash {

struct TopKAttentionOptions {
  AttentionMask mask{};           ///< which keys a query may choose from
  std::optional<double> scale{};  ///< factor of the scores; 1 / sqrt(D) by default
  double dropout = 0;             ///< probability with which an attention weight is dropped
};

/// The min(count, S_k) visible keys with which each query of q [B, H, S_q, D] has the highest
/// scores scale q k', in descending order, the lower key first of equal ones: int64
/// [B, H, S_q, count], -1 where fewer are visible. Not differentiable. Scores are made for a few
/// queries at a time. A mask takes S_q x S_k bytes unless it is `causal()`, `key_lengths` or both
/// joined by `&`.
SASH_API Tensor top_keys(const Tensor& q, const Tensor& k, int64_t count,
                         const TopKAttentionOptions& options = {});

/// Attention of each query to its `top_keys` alone (exact top-k attention, the oracle of Vyas et
/// al., 2020):
///
///     o_i = dropout(softmax over the top keys of scale q_i k') v.
///
/// q [B, H, S_q, D], k [B, H_kv, S_k, D], v [B, H_kv, S_k, D_v] give [B, H, S_q, D_v]; H is a
/// multiple of H_kv. O(S_q S_k) time for the choice and O(S_q top_k) memory; with top_k >= S_k it
/// is `attention`. A query that sees no key gets zeros and a zero gradient. Floating dtypes.
/// Gradients reach q, k and v, none flows through the choice.
///
/// `ValueError` unless top_k >= 1. Throws as `attention` does.
SASH_API Tensor top_k_attention(const Tensor& q, const Tensor& k, const Tensor& v, int64_t top_k,
                                const TopKAttentionOptions& options = {});
/// Attention of each query to `keys` alone: int64 [B, H, S_q, K] in [0, S_k), or -1 for no key. The
/// mask is not applied to these keys.
SASH_API Tensor top_k_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                const Tensor& keys, const TopKAttentionOptions& options = {});

}  // namespace sash
