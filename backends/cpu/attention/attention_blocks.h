#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "../../../core/range.h"
#include "../../../ops/kernels/attention.h"

/// Finds the keys that a tile of queries reads. They are the blocks of the tile's row in the block
/// map, without keys that no query of the tile sees. Steps of limited size go through them.
namespace sash::cpu::attn {

using Index = int64_t;

/// Number of queries in a tile, and in a block of the map: four AVX-512 registers.
inline constexpr Index kRows = 64;
inline constexpr Index kBlockKeys = kernels::kBlockKeys;
/// The most keys in a step.
inline constexpr Index kStepKeys = 128;
/// Number of queries, or of keys, that share one visible range: the columns of a panel of products.
inline constexpr Index kGroup = 8;
inline constexpr Index kRowGroups = kRows / kGroup;

inline Index round_up(Index value, Index step) { return (value + step - 1) / step * step; }

/// The sizes, parameters and block map of one call.
struct AttentionDims {
  AttentionDims(const kernels::AttentionInputs& inputs, const kernels::AttentionParams& parameters);

  Index tiles() const { return map.query_blocks; }
  Index offset() const { return keys - queries; }
  Index group_of(Index h) const { return h * groups / heads; }
  Index keys_of(Index block) const { return std::min(kBlockKeys, keys - block * kBlockKeys); }

  const kernels::AttentionParams& params;
  Index batches, heads, groups, queries, keys, depth,
      v_depth;                   ///< groups: number of heads of k and v
  const kernels::BlockMap& map;  ///< with blocks of kRows queries
};

/// The queries [first, first + count) of head (b, h). They are block number `block` of the map.
struct QueryTile {
  QueryTile(const AttentionDims& dims, Index b, Index h, Index block);

  Index b, h, block, first, count;
};

/// The block row of one tile, narrowed by the bounds.
class TileBlocks {
 public:
  struct Entry {
    Index block;  ///< keys [block kBlockKeys, (block + 1) kBlockKeys)
    Index bits;   ///< number of the block's bit tile; -1 if the block is full
  };

  TileBlocks(const AttentionDims& dims, const QueryTile& tile);

  /// Number of entries; partial blocks come first.
  Index size() const { return row_.size(); }
  Entry operator[](Index i) const {
    const auto entry = static_cast<int32_t>(i);
    return {list_.block_of(row_, entry), list_.tile_of(row_, entry)};
  }

  /// meets: whether the bounds of any query overlap the block. cuts: whether the bounds of any
  /// query exclude some of its keys.
  bool meets(Index block) const;
  bool cuts(Index block) const;
  /// The keys of `block` within the bounds of the tile's query i, counted from the first key of the
  /// block.
  IndexRange within(Index block, Index i) const;

 private:
  const kernels::BlockList& list_;
  const kernels::BlockRow& row_;
  const kernels::KeyRange* bounds_ = nullptr;  // bounds of the tile's queries
  IndexRange met_, whole_;  // the keys within the bounds of some query, and of every query
};

/// A set of key blocks. The rank of a block is its number within the set.
class BlockSet {
 public:
  /// The key blocks that the query blocks `tiles` read, in the heads `heads` of batch b.
  BlockSet(const AttentionDims& dims, Index b, IndexRange heads, IndexRange tiles);

  Index size() const { return size_; }
  bool contains(Index block) const { return word(block).bits >> (block % 64) & 1; }
  Index rank(Index block) const {
    const uint64_t below = word(block).bits & ((uint64_t{1} << (block % 64)) - 1);
    return word(block).before + std::popcount(below);
  }
  /// The row of `key` in memory where a task packs the rows of the blocks of this set.
  Index packed_row(Index key) const {
    return rank(key / kBlockKeys) * kBlockKeys + key % kBlockKeys;
  }
  template <class F>
  void for_each(F&& f) const {
    for (size_t i = 0; i < words_.size(); ++i) {
      for (uint64_t bits = words_[i].bits; bits != 0; bits &= bits - 1) {
        f(static_cast<Index>(64 * i) + std::countr_zero(bits));
      }
    }
  }

 private:
  struct Word {
    uint64_t bits = 0;
    Index before = 0;
  };
  const Word& word(Index block) const { return words_[static_cast<size_t>(block / 64)]; }

  std::vector<Word> words_;
  Index size_ = 0;
};

/// A run of consecutive keys in a step.
struct Segment {
  Index key;     ///< number of the first key
  Index keys;    ///< number of keys, a multiple of kGroup
  Index column;  ///< column of the first key in the step's tile of scores
  /// One word for each key: bit i says whether the tile's query i sees the key. Null: all queries
  /// see all keys.
  const uint64_t* visible;
  /// For each group of queries, the keys that any of these queries sees, counted from the first
  /// key.
  std::array<IndexRange, kRowGroups> seen;

  /// The queries that see any key of the group that starts at `first`.
  IndexRange queries_of(Index first) const {
    if (!visible) return {0, kRows};
    uint64_t any = 0;
    for (Index j = 0; j < kGroup; ++j) any |= visible[first + j];
    return range_of_bits(any);
  }
  /// Whether any of the queries [query, query + count) sees a key of the group that starts at
  /// `first`.
  bool any_of(Index query, Index count, Index first) const {
    if (!visible) return true;
    const IndexRange queries = queries_of(first);
    return queries.first < query + count && queries.past > query;
  }
  IndexRange keys_of(Index group) const {
    return visible ? seen[static_cast<size_t>(group)] : IndexRange{0, keys};
  }
  /// The part of the segment from its key `first` to the end of the block with that key.
  Segment block_from(Index first) const {
    Segment part = *this;
    part.key += first;
    part.keys = std::min(keys - first, kBlockKeys - part.key % kBlockKeys);
    return part;
  }
};

/// Iterates over the keys that a tile sees, in steps of at most kStepKeys keys.
class Steps {
 public:
  Steps(const AttentionDims& dims, const QueryTile& tile)
      : dims_(dims), tile_(tile), blocks_(dims, tile) {}

  /// Goes to the next step; returns false at the end.
  bool next();
  std::span<const Segment> segments() const { return {segments_.data(), count_}; }
  Index keys() const { return keys_; }

 private:
  static constexpr size_t kMaxSegments = 6;  // in a step

  Segment segment(TileBlocks::Entry entry);
  bool append(const Segment& segment);

  const AttentionDims& dims_;
  const QueryTile& tile_;
  TileBlocks blocks_;
  Index next_ = 0;
  std::array<Segment, kMaxSegments> segments_;
  size_t count_ = 0;
  Index keys_ = 0;
  // Visible pairs of those segments that bounds cut.
  uint64_t words_[kMaxSegments][kBlockKeys];
};

}  // namespace sash::cpu::attn
