#pragma once

#include <cstdint>

/// Which blocks of scores hold a visible pair, and which pairs of a block those are. Host-side
/// values that point to memory of the device they were made for.
namespace sash::kernels {

/// Keys per block; a row of a bit tile is one word.
inline constexpr int64_t kBlockKeys = 64;

/// For each block of one axis, the blocks of the other axis that it meets. Line r lists entries
/// [start[r], start[r + 1]): first those that are visible in part, up to full_start[r], then those
/// that are visible whole. Both runs ascend. Behind the last entry lies one more, of no meaning,
/// for kernels that read ahead.
///
/// `order` is one in which to take the lines of a head where many share the work: first those that
/// are more than twice as long as the mean, then the others from the end that has more entries, so
/// that what starts last is short; otherwise neighbours follow each other. A line r of the first
/// kind is listed as ~r.
struct BlockList {
  const int32_t* start = nullptr;       ///< [lines + 1]
  const int32_t* full_start = nullptr;  ///< [lines]
  const int32_t* block = nullptr;       ///< [entries + 1]: number of the block on the other axis
  const int32_t* tile = nullptr;        ///< [entries + 1]: its bit tile; -1 where visible whole
  const int32_t* order = nullptr;       ///< [lines]: each head's lines, from 0; long ones as ~r

  int64_t entries = 0;
  int64_t longest = 0;     ///< most entries of a line
  int64_t long_lines = 0;  ///< most lines of a head that come first for their length
  int direction = 0;       ///< of every head's order: 1 ascending, -1 descending, 0 neither
};

/// Scores [queries, keys] in blocks of query_rows x kBlockKeys. Query block m holds the queries
/// [m query_rows, (m + 1) query_rows), key block n the keys [64 n, 64 (n + 1)).
///
/// A block is visible whole if each of its queries before the end of the sequence sees each of its
/// 64 keys; queries past the end do not count, keys past the end are hidden. A block without a
/// visible pair is not listed.
struct BlockMap {
  int64_t query_rows = 0;
  int64_t query_blocks = 0, key_blocks = 0;
  int64_t batches = 1, heads = 1;  ///< 1 where all batches or heads look alike

  BlockList by_query;  ///< lines [batches, heads, query_blocks]; lists key blocks
  BlockList by_key;    ///< lines [batches, heads, key_blocks]; lists query blocks

  /// Bit tiles [tiles][query_rows]: bit j of a word says whether the query sees the block's key j.
  const uint64_t* bits = nullptr;
  /// The same transposed, [tiles][kBlockKeys][words_per_key]: bit i % 64 of word i / 64 stands for
  /// the block's query i.
  const uint64_t* key_bits = nullptr;
  int64_t words_per_key = 1;  ///< ceil(query_rows / 64)

  /// The line of block 0 of head (b, h), where a head has `blocks` lines.
  constexpr int64_t first_line(int64_t b, int64_t h, int64_t blocks) const {
    return ((batches == 1 ? 0 : b) * heads + (heads == 1 ? 0 : h)) * blocks;
  }
};

/// Where kernels get a mask's map from, in the block size they want.
class BlockMaps {
 public:
  virtual ~BlockMaps() = default;
  /// The map with `query_rows` queries a block, 1 <= query_rows <= 256, on the device of the call.
  /// Compiled once and kept; its memory lives at least as long as the call.
  virtual BlockMap with_rows(int64_t query_rows) const = 0;
};

}  // namespace sash::kernels
