#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "../../../ops/kernels/attention.h"

/// Which keys a tile of queries works on: the entries of the block map, narrowed by the bounds of
/// its rows, cut to what any of its queries sees, and handed out step by step.
namespace sash::cpu::attn {

using Index = int64_t;

/// Queries of a tile, and of a block of the map: four AVX-512 registers.
inline constexpr Index kRows = 64;
inline constexpr Index kBlockKeys = kernels::kBlockKeys;
/// Most keys of a step.
inline constexpr Index kStepKeys = 128;
/// Queries, or keys, that share a range of what they see: the columns of a panel of products.
inline constexpr Index kGroup = 8;
inline constexpr Index kRowGroups = kRows / kGroup;

inline Index round_up(Index value, Index step) { return (value + step - 1) / step * step; }

/// The positions [first, past).
struct Range {
  Index first = 0, past = 0;
  bool empty() const { return first >= past; }
  Index size() const { return past - first; }
  bool operator==(const Range&) const = default;
  /// The least range that holds every bit of `word`.
  static Range of_bits(uint64_t word) {
    if (word == 0) return {};
    return {std::countr_zero(word), static_cast<Index>(std::bit_width(word))};
  }
};

/// One call.
struct Problem {
  Problem(const kernels::AttentionInputs& inputs, const kernels::AttentionParams& parameters);

  Index tiles() const { return map.query_blocks; }
  Index offset() const { return keys - queries; }
  Index group_of(Index h) const { return h * groups / heads; }
  Index keys_of(Index block) const { return std::min(kBlockKeys, keys - block * kBlockKeys); }

  const kernels::AttentionParams& params;
  Index batches, heads, groups, queries, keys, depth, v_depth;  ///< groups: heads of k and v
  const kernels::BlockMap& map;                                 ///< of kRows queries a block
};

/// The queries [first, first + count) of head (b, h): block number `block` of the map.
struct QueryTile {
  QueryTile(const Problem& problem, Index b, Index h, Index block);

  Index b, h, block, first, count;
};

/// What the queries of one tile see: the map's entries within the bounds.
class TileBlocks {
 public:
  struct Entry {
    Index block;  ///< keys [block kBlockKeys, (block + 1) kBlockKeys)
    Index bits;   ///< number of its bit tile; -1 if visible whole
  };

  TileBlocks(const Problem& problem, const QueryTile& tile);

  /// Entries of the map; those that are visible in part come first.
  Index size() const { return past_ - first_; }
  Entry operator[](Index i) const { return {list_.block[first_ + i], list_.tile[first_ + i]}; }

  /// Whether some query's bounds meet the block, and whether some query's bounds cut it.
  bool meets(Index block) const;
  bool cuts(Index block) const;
  /// The keys of `block`, counted from its first, within the bounds of the tile's query i.
  Range within(Index block, Index i) const;

 private:
  struct Bounds {
    int32_t first, past;
  };

  const kernels::BlockList& list_;
  Index first_, past_;              // entries of the map
  const Bounds* bounds_ = nullptr;  // of the tile's queries
  Range met_, whole_;               // the keys that some query, and that every query may see
};

/// The key blocks that some queries meet, each with its rank.
class BlockSet {
 public:
  /// Those of the query blocks `tiles` of the heads `heads` of batch b.
  BlockSet(const Problem& problem, Index b, Range heads, Range tiles);

  Index size() const { return size_; }
  bool contains(Index block) const { return word(block).bits >> (block % 64) & 1; }
  Index rank(Index block) const {
    const uint64_t below = word(block).bits & ((uint64_t{1} << (block % 64)) - 1);
    return word(block).before + std::popcount(below);
  }
  /// The place of a key's row, where a task keeps the rows of its blocks.
  Index place(Index key) const { return rank(key / kBlockKeys) * kBlockKeys + key % kBlockKeys; }
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

/// Neighbouring keys of a step.
struct Segment {
  Index key;     ///< number of the first
  Index keys;    ///< how many, a multiple of kGroup
  Index column;  ///< place of the first in the step's tile of scores
  /// For each key, bit i says whether the tile's query i sees it. Null: all queries see all keys.
  const uint64_t* visible;
  /// For each group of queries, the keys that any of them sees, counted from the first.
  std::array<Range, kRowGroups> seen;

  /// The queries that see any key of the group that starts at `first`.
  Range queries_of(Index first) const {
    if (!visible) return {0, kRows};
    uint64_t any = 0;
    for (Index j = 0; j < kGroup; ++j) any |= visible[first + j];
    return Range::of_bits(any);
  }
  Range keys_of(Index group) const {
    return visible ? seen[static_cast<size_t>(group)] : Range{0, keys};
  }
  /// The part from key `first` of the segment to the end of its block.
  Segment block_from(Index first) const {
    Segment part = *this;
    part.key += first;
    part.keys = std::min(keys - first, kBlockKeys - part.key % kBlockKeys);
    return part;
  }
};

/// Walks what a tile sees, in steps of at most kStepKeys keys.
class Steps {
 public:
  Steps(const Problem& problem, const QueryTile& tile)
      : problem_(problem), tile_(tile), blocks_(problem, tile) {}

  /// Goes to the next step; false at the end.
  bool next();
  std::span<const Segment> segments() const { return {segments_.data(), count_}; }
  Index keys() const { return keys_; }

 private:
  static constexpr size_t kMost = 6;  // segments of a step

  Segment segment(TileBlocks::Entry entry);
  bool append(const Segment& segment);

  const Problem& problem_;
  const QueryTile& tile_;
  TileBlocks blocks_;
  Index next_ = 0;
  std::array<Segment, kMost> segments_;
  size_t count_ = 0;
  Index keys_ = 0;
  // For segments whose visible pairs are not those of a bit tile.
  uint64_t words_[kMost][kBlockKeys];
};

}  // namespace sash::cpu::attn
