#pragma once

#include <optional>

#include "../exact/attention.h"

/// Which blocks of keys queries attend to, chosen by their scores with pooled keys.
namespace sash {

/// What the blocks of a row are ordered by.
enum class BlockScore {
  logits,         ///< q . pooled, for each query head (MoBA)
  probabilities,  ///< their softmax, summed over the query heads of a key head (NSA)
};

struct SelectBlocksOptions {
  int64_t block = 64;  ///< keys of a block; the last block may have fewer
  int64_t count = 16;  ///< k: blocks of a row, the forced ones among them
  BlockScore score = BlockScore::logits;
  bool causal = true;             ///< no block that starts after the query's position
  int64_t queries_per_row = 1;    ///< R: so many queries in a row get the same blocks
  int64_t first = 0;              ///< the first so many blocks are forced: always chosen
  bool own = true;                ///< so is the block at the query's position,
  int64_t neighbours = 0;         ///< and so many blocks before that one
  std::optional<double> scale{};  ///< of the logits in the softmax; 1 / sqrt(D) by default
  /// [B, H_kv, n, D], n = ceil(S_k / block), instead of the means of the blocks. Causal calls
  /// with `own` blocks or probabilities score complete blocks only, and also take n = floor(S_k /
  /// block).
  Tensor pooled_keys{};
  /// For probabilities, if it is known: float32 (float64 for float64) [B, H_q, S_q], the log of the
  /// sum of exp(scale q . pooled) over the blocks that the query scores, as `attention_with_lse`
  /// gives it (under `ended_blocks` if causal).
  Tensor lse{};
};

/// The k blocks of keys that each row of R queries attends to, int32 [B, H, ceil(S_q / R), k] in
/// ascending order, -1 after the last: what `AttentionMask::selected` takes. H is H_q for `logits`
/// and H_kv for `probabilities`. q is [B, H_q, S_q, D], k [B, H_kv, S_k, D], H_q a multiple of
/// H_kv; floating dtypes. Not differentiable.
///
/// Query i stands at position p = i + S_k - S_q, block c has the keys [c block, (c + 1) block).
/// Forced blocks come first; then those with the highest score, the lower block first of equal
/// ones. For a row, with the query heads g of head h,
///
///     logits         sum over i of q[g, i] . pooled[c]                    c block <= p,
///     probabilities  sum over i, g of softmax(scale q[g, i] . pooled)[c]  (c + 1) block <= p + 1.
///
/// The inequality says which blocks a causal query scores, others add 0: NSA's compressed keys are
/// visible once their block has ended. Candidates are the blocks that start at the position of the
/// row's last query or before; they may be chosen with a score of 0 too. A NaN score counts as
/// -infinity. A row of R queries has the own blocks of all its queries.
///
/// Products and sums in float32 (float64 for float64), pooled means in k's dtype. The scores
/// [S_q, n] are never stored: the k best are found on the way, so memory is that of the arguments.
/// `logits` as in Lu et al., "MoBA: Mixture of block attention for long-context LLMs", 2025;
/// `probabilities` as in Yuan et al., "Native sparse attention", 2025.
///
/// `ValueError` unless block, count and R are at least 1, the others not negative, scale finite,
/// and count >= first + neighbours + own blocks, of which a row has up to ceil((R - 1) / block) +
/// 1; or for over 2^31 - 1 blocks, or an lse with logits. `ShapeError`, `DTypeError`, `DeviceError`
/// unless the tensors fit.
SASH_API Tensor select_blocks(const Tensor& q, const Tensor& k,
                              const SelectBlocksOptions& options = {});

/// The means of each `block` elements along axis 2 of x [B, H, S, D], the last of the rest:
/// [B, H, ceil(S / block), D]. Differentiable. `ValueError` unless block >= 1, `ShapeError` unless
/// x has 4 axes, `DTypeError` unless it is floating.
SASH_API Tensor block_means(const Tensor& x, int64_t block);

/// `attention_probabilities` summed over each `block` keys, [B, H, S_q, ceil(S_k / block)], without
/// the S_q x S_k weights: attention to values that name the block of their key. Time is that of
/// attention with a value width of all blocks. Differentiable. Throws as `attention`, and
/// `ValueError` unless block >= 1.
SASH_API Tensor block_probabilities(const Tensor& q, const Tensor& k, int64_t block,
                                    const AttentionOptions& options = {});

/// Keys that stand for whole blocks, as compressed keys of NSA: query i sees key c if block c has
/// ended at its position, (c + 1) block <= p + 1 with p = i + keys - queries. For attention to
/// floor(keys / block) pooled keys. `ValueError` unless block >= 1 and the lengths >= 0.
SASH_API AttentionMask ended_blocks(int64_t queries, int64_t keys, int64_t block,
                                    Device device = kCPU);

}  // namespace sash
