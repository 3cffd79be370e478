#pragma once

#include <algorithm>

#include "../../runtime/backend.h"
#include "dims.cuh"
#include "kept.h"
#include "lanes.cuh"

/// Bit tiles of dropout: which probabilities of a call dropout does not drop. They are drawn once
/// for a pass, before the kernels that read them.
namespace sash::cuda {

/// The tiles of a head take `kept_span` / features times the memory of its q, k, v and out. Above
/// `kKeptSpan` times, the backward pass draws the tiles again. Above `kDrawnSpan` times there are
/// no tiles: kernels draw the bits of each step. Neither limit depends on the number of heads, so
/// that a head has the same bits in every batch.
inline constexpr int64_t kKeptSpan = 2, kDrawnSpan = 4;

/// Whether the kernels of a call with heads of `features` read bit tiles of at most `most` times
/// the memory of the heads: dropout is the only option.
template <class T>
bool keeps_tiles(const AttentionDims<T>& p, int64_t features, int64_t most = kDrawnSpan) {
  return p.dropout && p.kept > 0 && !p.options && p.exponent > 0 && features <= 128 &&
         p.kept_span <= most * std::max<int64_t>(features, 32);
}

/// A bit tile of a block of scores. Each thread of four warps has one word: the bits of its
/// accumulators (fragments.cuh). The rows of accumulators are queries or keys.
struct alignas(128) KeptTile {
  uint32_t word[4 * kWarp];
};

/// The number of this lane's word in a tile, if the lane has rows 16 `rows` + lane() / 4, and 8
/// rows further.
template <bool by_query>
__device__ int kept_word_of(int rows) {
  return rows * kWarp + (by_query ? lane() : lane() % 4 * 8 + lane() / 4 % 2 * 4 + lane() / 8);
}

/// The place of the bit of sum[j][e] in the word. It is a sum of terms, each of one bit of j or e.
template <bool by_query>
constexpr __device__ int kept_place(int j, int e) {
  return by_query ? j % 4 * 8 + j / 4 * 4 + e
                  : j / 2 % 2 * 16 + e / 2 * 8 + j / 4 * 4 + j % 2 * 2 + e % 2;
}

/// Bit tiles [B, H, query blocks, span] in two orders; null for an order that is not needed. Only
/// the blocks between the first and the last block that a query block lists are written.
struct KeptCall {
  KeptTile* by_query = nullptr;  ///< rows are queries
  KeptTile* by_key = nullptr;    ///< rows are keys
};

/// The size in bytes of the bit tiles in one order.
template <class T>
int64_t kept_bytes(const AttentionDims<T>& p) {
  return int64_t{p.batches} * p.heads * p.map.query_blocks * p.kept_span *
         int64_t{sizeof(KeptTile)};
}

template <class T>
void kept_tiles(const KernelContext& context, const AttentionDims<T>& dims, const KeptCall& call);

/// The bit tiles that a pass reads, in the orders that it asks for. The forward pass leaves those
/// `by_key` in `kept`, from where the backward pass reads them. Others, and all if `kept` is null,
/// are drawn into scratch memory.
template <class T>
class KeptTiles {
 public:
  KeptTiles(const KernelContext& context, const AttentionDims<T>& dims, const TensorView* kept,
            AttentionPass pass, bool by_query, bool by_key)
      : scratch_(context, (by_query + (by_key && !kept)) * kept_bytes(dims)) {
    auto* const memory = scratch_.template ptr<KeptTile>();
    const int64_t tiles = kept_bytes(dims) / int64_t{sizeof(KeptTile)};
    KeptCall draws;
    if (by_query) draws.by_query = memory;
    if (by_key && !kept) draws.by_key = memory + (by_query ? tiles : 0);
    tiles_ = draws;
    if (kept) tiles_.by_key = kept->ptr<KeptTile>();
    if (pass == AttentionPass::forward) draws = tiles_;
    if (draws.by_query || draws.by_key) kept_tiles(context, dims, draws);
  }

  const KeptTile* by_query() const { return tiles_.by_query; }
  const KeptTile* by_key() const { return tiles_.by_key; }

 private:
  Workspace scratch_;
  KeptCall tiles_;
};

}  // namespace sash::cuda
