#include "attention_blocks.h"

#include <algorithm>

namespace sash::cpu::attn {

AttentionDims::AttentionDims(const kernels::AttentionInputs& inputs,
                             const kernels::AttentionParams& parameters)
    : params(parameters),
      batches(inputs.q.shape[0]),
      heads(inputs.q.shape[1]),
      groups(inputs.k.shape[1]),
      queries(inputs.q.shape[2]),
      keys(inputs.k.shape[2]),
      depth(inputs.q.shape[3]),
      v_depth(inputs.v.shape[3]),
      map(parameters.map) {}

QueryTile::QueryTile(const AttentionDims& dims, Index b_, Index h_, Index block_)
    : b(b_),
      h(h_),
      block(block_),
      first(block_ * kRows),
      count(std::min(kRows, dims.queries - first)) {}

TileBlocks::TileBlocks(const AttentionDims& dims, const QueryTile& tile)
    : list_(dims.map.by_query),
      row_(list_.rows[dims.map.first_row(tile.b, tile.h, dims.tiles()) + tile.block]),
      met_{0, dims.keys},
      whole_{0, dims.keys} {
  const TensorView* bounds = dims.params.bounds;
  if (!bounds) return;
  const Index b = bounds->shape[0] == 1 ? 0 : tile.b, h = bounds->shape[1] == 1 ? 0 : tile.h;
  bounds_ = bounds->ptr<const kernels::KeyRange>() + (b * bounds->shape[1] + h) * dims.queries +
            tile.first;
  met_ = {dims.keys, 0};
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

IndexRange TileBlocks::within(Index block, Index i) const {
  const auto clamped = [block](Index key) {
    return std::clamp<Index>(key - block * kBlockKeys, 0, kBlockKeys);
  };
  return {clamped(bounds_[i].first), clamped(bounds_[i].past)};
}

BlockSet::BlockSet(const AttentionDims& dims, Index b, IndexRange heads, IndexRange tiles)
    : words_(static_cast<size_t>((dims.map.key_blocks + 63) / 64)) {
  for (Index h = heads.first; h < heads.past; ++h) {
    for (Index tile = tiles.first; tile < tiles.past; ++tile) {
      const TileBlocks seen(dims, QueryTile(dims, b, h, tile));
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
  for (; next_ < blocks_.size() && count_ < kMaxSegments; ++next_) {
    const TileBlocks::Entry entry = blocks_[next_];
    if (blocks_.meets(entry.block) && !append(segment(entry))) break;
  }
  return count_ > 0;
}

// Adds a segment to the step, joined with the last one if they are adjacent and full. False if
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

// The visible part of an entry. If bounds cut it, its bits are stored in the next slot of words_.
Segment Steps::segment(TileBlocks::Entry entry) {
  const bool cut = blocks_.cuts(entry.block);
  Segment part{entry.block * kBlockKeys, kBlockKeys, 0, nullptr, {}};
  if (entry.bits < 0 && !cut) return part;
  const uint64_t* const rows = entry.bits < 0 ? nullptr : dims_.map.bits + entry.bits * kRows;
  if (rows) part.visible = dims_.map.key_bits + entry.bits * kBlockKeys;

  // The keys that any query of a group sees, and per key the queries whose bounds start or end
  // there.
  uint64_t seen[kRowGroups] = {}, toggles[kBlockKeys + 1] = {};
  for (Index i = 0; i < tile_.count; ++i) {
    uint64_t row = rows ? rows[i] : ~uint64_t{0};
    if (cut) {
      const IndexRange keys = blocks_.within(entry.block, i);
      row &= bits_of(keys);
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
  const IndexRange hull = range_of_bits(any);
  const Index first = hull.first / kGroup * kGroup;
  for (size_t group = 0; group < kRowGroups; ++group) {
    const IndexRange keys = range_of_bits(seen[group]);
    if (!keys.empty()) part.seen[group] = {keys.first - first, keys.past - first};
  }
  part.key += first;
  part.visible += first;
  part.keys = round_up(hull.past, kGroup) - first;
  return part;
}

}  // namespace sash::cpu::attn
