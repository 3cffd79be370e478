#pragma once

#include <cstdint>

/// Which blocks of scores hold a visible pair, and which pairs those are. docs/block_maps.md has
/// the glossary. Host structs whose pointers lead to memory of the device they were made for.
namespace sash::kernels {

/// Keys per block: a query's bits are one word of a bit tile.
inline constexpr int64_t kBlockKeys = 64;

/// The block rows of a map in block sparse row (BSR) form. Row r has the entries
/// [start[r], start[r + 1]): partial blocks, then from full_start[r] on full ones; both ascend.
/// One padding entry at the end, so kernels may prefetch.
///
/// `order` is a schedule of each head's rows: long ones (more than twice the mean) first, stored as
/// ~r, then the others from the end that has more entries, so that the last to run are short.
struct BlockList {
  const int32_t* start = nullptr;       ///< [rows + 1]
  const int32_t* full_start = nullptr;  ///< [rows]
  const int32_t* block = nullptr;       ///< [entries + 1]: number of the block on the other axis
  const int32_t* tile = nullptr;        ///< [entries + 1]: its bit tile, -1 if full
  const int32_t* order = nullptr;       ///< [rows]: rows count from 0 in each head

  int64_t entries = 0;
  int64_t longest = 0;    ///< most entries of a row
  int64_t long_rows = 0;  ///< most long rows of a head
  /// Most rows of a head at the start of `order`, behind the long ones, and at its end that have
  /// fewer entries than the longest of those between.
  int64_t short_first = 0, short_last = 0;
  int direction = 0;       ///< of `order` in every head: 1 ascending, -1 descending, 0 neither
  bool contiguous = true;  ///< each row's blocks are neighbours, with none missing between
};

/// Scores [queries, keys] in blocks of query_rows x kBlockKeys. Query block m holds the queries
/// [m query_rows, (m + 1) query_rows), key block n the keys [64 n, 64 (n + 1)).
///
/// Queries past the end of the sequence do not count; keys past the end are hidden, so the last
/// key block of a ragged length is never full. Empty blocks are not listed.
struct BlockMap {
  int64_t query_rows = 0;
  int64_t query_blocks = 0, key_blocks = 0;
  int64_t batches = 1, heads = 1;  ///< 1 where all batches or heads look alike

  BlockList by_query;  ///< rows [batches, heads, query_blocks] of key blocks
  BlockList by_key;    ///< rows [batches, heads, key_blocks] of query blocks

  /// Bit tiles [tiles][query_rows]: bit j says whether the query sees the block's key j.
  const uint64_t* bits = nullptr;
  /// Transposed, [tiles][kBlockKeys][words_per_key]: bit i % 64 of word i / 64 is the block's query
  /// i.
  const uint64_t* key_bits = nullptr;
  int64_t words_per_key = 1;  ///< ceil(query_rows / 64)

  /// The first block row of head (b, h), of `blocks` rows a head.
  constexpr int64_t first_row(int64_t b, int64_t h, int64_t blocks) const {
    return ((batches == 1 ? 0 : b) * heads + (heads == 1 ? 0 : h)) * blocks;
  }
};

}  // namespace sash::kernels
