#pragma once

#include "../../core/backend/kernel.h"
#include "../../core/backend/tensor_view.h"
#include "../../core/export.h"

/// The blocks of keys that rows of queries attend to.
namespace sash::kernels {

/// The rules of a choice. Query i stands at position p = i + keys - queries; row r has the queries
/// [r queries_per_row, (r + 1) queries_per_row), as far as they exist.
template <class Int>
struct BlockRulesOf {
  Int queries = 0, keys = 0;
  Int block = 1;   ///< keys of a block; there are ceil(keys / block) blocks
  Int scored = 0;  ///< blocks that have a pooled key
  Int queries_per_row = 1;
  Int first = 0, neighbours = 0;  ///< forced blocks, besides the own ones
  bool own = true, causal = true;
  bool complete = false;  ///< a causal query scores only blocks that end at its position or before

  SASH_HOST_DEVICE Int position(Int query) const { return query + keys - queries; }
  SASH_HOST_DEVICE Int blocks() const { return keys / block + (keys % block != 0); }
  /// A query at position p scores the blocks [0, seen(p)).
  SASH_HOST_DEVICE Int seen(Int p) const {
    if (!causal) return scored;
    const Int count = p < 0 ? 0 : complete ? (p + 1) / block : p / block + 1;
    return count < scored ? count : scored;
  }
};

using BlockRules = BlockRulesOf<int64_t>;

/// What the positions of a row say about its blocks.
template <class Int>
struct RowBlocksOf {
  Int query, past_query;  ///< the row's queries [query, past_query)
  Int candidates;         ///< blocks [0, candidates) may be chosen
  Int first;              ///< blocks [0, first) are forced,
  Int near, past_near;    ///< and blocks [near, past_near), first <= near

  SASH_HOST_DEVICE RowBlocksOf(const BlockRulesOf<Int>& rules, Int row) {
    query = row * rules.queries_per_row;
    past_query = least(query + rules.queries_per_row, rules.queries);
    const Int p = rules.position(query), last = rules.position(past_query - 1);
    const Int own = p < 0 ? 0 : p / rules.block, past_own = last < 0 ? 0 : last / rules.block + 1;
    candidates = rules.causal ? past_own : rules.blocks();
    first = least(rules.first, candidates);
    near = own - least(own, rules.neighbours);
    near = near < first ? first : near;
    past_near = rules.own || past_own == 0 ? past_own : own;
    past_near = past_near < near ? near : past_near;
  }

  SASH_HOST_DEVICE Int forced() const { return first + past_near - near; }
  SASH_HOST_DEVICE bool is_forced(Int b) const { return b < first || (b >= near && b < past_near); }
  /// Forced block number `i`.
  SASH_HOST_DEVICE Int forced(Int i) const { return i < first ? i : near + i - first; }

 private:
  SASH_HOST_DEVICE static Int least(Int a, Int b) { return a < b ? a : b; }
};
using RowBlocks = RowBlocksOf<int64_t>;

/// index[b, h, r] (int32 [B, H, rows, k], contiguous) = the k best of the row's candidates, in
/// ascending order, -1 after the last: the forced ones, then those with the highest scores, the
/// lower block first of equal ones. The score of block c is
///
///     sum of f(q[b, g, i] . pooled[b, g H_kv / H_q, c]) over the row's queries i that score c and
///     the query heads g with g H / H_q = h,
///
/// f(s) = s, or exp(scale s - lse[b, g, i]) with an lse; 0 without terms. A NaN counts as
/// -infinity. q is [B, H_q, S_q, D] with unit stride along the last axis, pooled [B, H_kv, scored,
/// D] contiguous, one floating dtype; lse C [B, H_q, S_q] contiguous, or null. C, the type of the
/// arithmetic, is float64 for float64, else float32. H is H_q or H_kv. No row forces more than k
/// blocks.
extern SASH_API
    Kernel<void(KernelContext&, const TensorView& q, const TensorView& pooled,
                const TensorView* lse, const BlockRules&, double scale, const TensorView& index)>
        select_blocks;

}  // namespace sash::kernels
