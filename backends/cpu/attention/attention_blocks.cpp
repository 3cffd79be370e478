#include "attention_blocks.h"

#include <algorithm>

namespace sash::cpu::attn {
namespace {

// Bits [first, past) of a word.
uint64_t ones(Range range) {
  if (range.empty()) return 0;
  const uint64_t low = ~uint64_t{0} >> (64 - range.size());
  return low << range.first;
}

}  // namespace

Problem::Problem(const kernels::AttentionInputs& inputs, const kernels::AttentionParams& parameters)
    : params(parameters),
      batches(inputs.q.shape[0]),
      heads(inputs.q.shape[1]),
      groups(inputs.k.shape[1]),
      queries(inputs.q.shape[2]),
      keys(inputs.k.shape[2]),
      depth(inputs.q.shape[3]),
      v_depth(inputs.v.shape[3]),
      map(parameters.map) {}

QueryTile::QueryTile(const Problem& problem, Index b_, Index h_, Index block_)
    : b(b_),
      h(h_),
      block(block_),
      first(block_ * kRows),
      count(std::min(kRows, problem.queries - first)) {}

TileBlocks::TileBlocks(const Problem& problem, const QueryTile& tile)
    : list_(problem.map.by_query), met_{0, problem.keys}, whole_{0, problem.keys} {
  const Index line = problem.map.first_row(tile.b, tile.h, problem.tiles()) + tile.block;
  first_ = list_.start[line];
  past_ = list_.start[line + 1];
  const TensorView* bounds = problem.params.bounds;
  if (!bounds) return;
  const Index b = bounds->shape[0] == 1 ? 0 : tile.b, h = bounds->shape[1] == 1 ? 0 : tile.h;
  bounds_ = bounds->ptr<const Bounds>() + (b * bounds->shape[1] + h) * problem.queries + tile.first;
  met_ = {problem.keys, 0};
  for (Index i = 0; i < tile.count; ++i) {
    met_ = {std::min<Index>(met_.first, bounds_[i].first),
            std::max<Index>(met_.past, bounds_[i].past)};
    whole_ = {std::max<Index>(whole_.first, bounds_[i].first),
              std::min<Index>(whole_.past, bounds_[i].past)};
  }
}

bool TileBlocks::meets(Index block) const {
  return block * kBlockKeys < met_.past && (block + 1) * kBlockKeys > met_.first;
}

bool TileBlocks::cuts(Index block) const {
  return bounds_ && (block * kBlockKeys < whole_.first || (block + 1) * kBlockKeys > whole_.past);
}

Range TileBlocks::within(Index block, Index i) const {
  const auto place = [block](Index key) {
    return std::clamp<Index>(key - block * kBlockKeys, 0, kBlockKeys);
  };
  return {place(bounds_[i].first), place(bounds_[i].past)};
}

BlockSet::BlockSet(const Problem& problem, Index b, Range heads, Range tiles)
    : words_(static_cast<size_t>((problem.map.key_blocks + 63) / 64)) {
  for (Index h = heads.first; h < heads.past; ++h) {
    for (Index tile = tiles.first; tile < tiles.past; ++tile) {
      const TileBlocks seen(problem, QueryTile(problem, b, h, tile));
      for (Index i = 0; i < seen.size(); ++i) {
        const Index block = seen[i].block;
        if (!seen.meets(block)) continue;
        words_[static_cast<size_t>(block / 64)].bits |= uint64_t{1} << block % 64;
      }
    }
  }
  for (Word& word : words_) {
    word.before = size_;
    size_ += std::popcount(word.bits);
  }
}

bool Steps::next() {
  count_ = 0;
  keys_ = 0;
  for (; next_ < blocks_.size() && count_ < kMost; ++next_) {
    const TileBlocks::Entry entry = blocks_[next_];
    if (blocks_.meets(entry.block) && !append(segment(entry))) break;
  }
  return count_ > 0;
}

// Adds a segment to the step, or to the step's last one if that ends where it begins. False if
// there is no room.
bool Steps::append(const Segment& segment) {
  if (segment.keys == 0) return true;
  if (keys_ + segment.keys > kStepKeys) return false;
  Segment* const last = count_ > 0 ? &segments_[count_ - 1] : nullptr;
  if (last && !last->visible && !segment.visible && last->key + last->keys == segment.key) {
    last->keys += segment.keys;
  } else {
    segments_[count_] = segment;
    segments_[count_].column = keys_;
    ++count_;
  }
  keys_ += segment.keys;
  return true;
}

// The part of an entry that is seen; its words may lie in the step's next free place.
Segment Steps::segment(TileBlocks::Entry entry) {
  const bool cut = blocks_.cuts(entry.block);
  Segment part{entry.block * kBlockKeys, kBlockKeys, 0, nullptr, {}};
  if (entry.bits < 0 && !cut) return part;
  const uint64_t* const rows = entry.bits < 0 ? nullptr : problem_.map.bits + entry.bits * kRows;
  if (rows) part.visible = problem_.map.key_bits + entry.bits * kBlockKeys;

  // The keys that each query sees, and where bounds begin to hide or to show them.
  uint64_t seen[kRowGroups] = {}, toggles[kBlockKeys + 1] = {};
  for (Index i = 0; i < tile_.count; ++i) {
    uint64_t row = rows ? rows[i] : ~uint64_t{0};
    if (cut) {
      const Range keys = blocks_.within(entry.block, i);
      row &= ones(keys);
      if (!keys.empty()) {
        toggles[keys.first] ^= uint64_t{1} << i;
        toggles[keys.past] ^= uint64_t{1} << i;
      }
    }
    seen[i / kGroup] |= row;
  }
  if (cut) {
    uint64_t* const words = words_[count_];
    uint64_t shown = 0;
    for (Index j = 0; j < kBlockKeys; ++j) {
      shown ^= toggles[j];
      words[j] = rows ? part.visible[j] & shown : shown;
    }
    part.visible = words;
  }

  uint64_t any = 0;
  for (const uint64_t keys : seen) any |= keys;
  const Range hull = Range::of_bits(any);
  const Index first = hull.first / kGroup * kGroup;
  for (size_t group = 0; group < kRowGroups; ++group) {
    const Range keys = Range::of_bits(seen[group]);
    if (!keys.empty()) part.seen[group] = {keys.first - first, keys.past - first};
  }
  part.key += first;
  part.visible += first;
  part.keys = round_up(hull.past, kGroup) - first;
  return part;
}

}  // namespace sash::cpu::attn
