#pragma once

#include <cstdint>

#include "../../core/export.h"

/// The blocks of scores that hold a visible pair, and their visible pairs. docs/block_maps.md has
/// the glossary. The structs are on the host; their pointers point to memory of the device.
namespace sash::kernels {

/// Keys per block: a query's bits are one word of a bit tile.
inline constexpr int64_t kBlockKeys = 64;

/// Entries [first, first + count) of a block row, whose blocks ascend. An entry e >= 0 is listed:
/// it is the block `block[e]` of a `BlockList`. Consecutive full blocks need no list: an entry e <
/// 0 is the block e - kUnlisted.
struct BlockRun {
  int32_t first = 0, count = 0;
};
/// A negative number whose absolute value exceeds any number of blocks.
inline constexpr int32_t kUnlisted = -(1 << 30);

/// A block row: its partial blocks come before its full ones.
struct BlockRow {
  BlockRun partial, full;

  SASH_HOST_DEVICE int32_t size() const { return partial.count + full.count; }
};

/// The block rows of one direction of a map. Partial blocks are always listed. One padding entry at
/// the end, so kernels may prefetch.
///
/// `order` is a schedule of each head's rows: long ones (more than twice the mean) first, stored as
/// ~r, then the others from the end that has more entries, so that the last to run are short.
struct BlockList {
  const BlockRow* rows = nullptr;
  const int32_t* block = nullptr;  ///< by entry: number of the block on the other axis
  const int32_t* tile = nullptr;   ///< by entry: its bit tile, -1 if full
  const int32_t* order = nullptr;  ///< [rows]: rows count from 0 in each head

  int64_t entries = 0;    ///< number of entries of all rows
  int64_t longest = 0;    ///< largest number of entries in a row
  int64_t long_rows = 0;  ///< largest number of long rows in a head
  /// How many short rows follow the long rows at the start of `order`, and how many stand at its
  /// end. A row is short if it has fewer entries than the longest row that is not long. Both are
  /// maxima over heads.
  int64_t short_first = 0, short_last = 0;
  int direction = 0;       ///< of `order` in every head: 1 ascending, -1 descending, 0 neither
  bool contiguous = true;  ///< each row's blocks are neighbours, with none missing between
  /// Whether rows 2 m and 2 m + 1 of every head have the same blocks, and not all rows have.
  bool paired = false;
  /// Whether neighbouring rows have less than a quarter of their blocks in common.
  bool scattered = false;

  /// The block number and the bit tile of entry `e`. The tile is -1 if the block is full.
  SASH_HOST_DEVICE int32_t block_at(int32_t e) const { return e < 0 ? e - kUnlisted : block[e]; }
  SASH_HOST_DEVICE int32_t tile_at(int32_t e) const { return e < 0 ? -1 : tile[e]; }

  /// The block number and the bit tile of entry i of a row, 0 <= i < `size()`.
  SASH_HOST_DEVICE int32_t block_of(const BlockRow& row, int32_t i) const {
    const int32_t of_full = i - row.partial.count;
    return block_at(of_full < 0 ? row.partial.first + i : row.full.first + of_full);
  }
  SASH_HOST_DEVICE int32_t tile_of(const BlockRow& row, int32_t i) const {
    return i < row.partial.count ? tile_at(row.partial.first + i) : -1;
  }
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
