#pragma once

#include "../layers/linear.h"

namespace sash::nn {

struct BlockIndexerOptions {
  int64_t block = 64;     ///< keys of a block
  int64_t top_k = 16;     ///< blocks that are selected for a query, its own among them
  int64_t heads = 4;      ///< of the indexer
  int64_t head_dim = 32;  ///< features of its queries and keys
};

/// Learns which earlier blocks of keys attention needs: the lightning indexer of DeepSeek-V3.2
/// (2025), for blocks instead of tokens. The score of query t with block c is
///
///     sum over heads j of weights(x[t])[j] relu(q_proj(x[t])[j] . mean of k_proj(x) over block c)
///
/// divided by sqrt(head_dim). `loss` trains the scores; the inputs x get no gradient.
///
///     Tensor index = indexer.select(x);
///     Tensor y = attention(q, k, v, {.mask = AttentionMask::causal() &
///                                            AttentionMask::selected(index, block)});
///     loss = loss + indexer.loss(x, q, k);
///
/// Children: `q_proj` to heads head_dim features and `k_proj` to head_dim, without biases, and
/// `weights` to heads, with a bias of ones at first. [S, blocks] scores for each head are stored.
class SASH_API BlockIndexer : public ModuleOf<BlockIndexer> {
 public:
  using Options = BlockIndexerOptions;

  /// `ValueError` unless dim and all options are positive.
  explicit BlockIndexer(int64_t dim, const BlockIndexerOptions& options = {});

  /// Scores of x [B, S, dim], [B, S, ceil(S / block)] in float32 (float64 for float64); -1e30 for
  /// blocks that have not ended at the query. `ShapeError` unless x is that.
  Tensor forward(const Tensor& x) override;
  /// The own block of each query and the ended blocks with the highest scores, int32 [B, 1, S,
  /// min(top_k, ceil(S / block))], -1 for none, as `AttentionMask::selected` takes it. Blocks with
  /// a NaN score are not selected. Not differentiable. Throws as `forward`.
  Tensor select(const Tensor& x);
  /// The mean over queries of KL(p || softmax(scores)), a single element. p are the weights that
  /// causal attention of q [B, H, S, D] to k [B, H_kv, S, D] gives to the ended blocks, averaged
  /// over heads and scaled to the sum 1 (`block_probabilities`): dense attention, in time S^2. q
  /// and k get no gradient. Queries without ended blocks add 0. Throws as `forward` and
  /// `attention`, and `ShapeError` unless q and k have the batches and tokens of x.
  Tensor loss(const Tensor& x, const Tensor& q, const Tensor& k,
              std::optional<double> scale = std::nullopt);

 private:
  BlockIndexerOptions options_;

 public:
  Linear &q_proj, &k_proj, &weights;
};

}  // namespace sash::nn
