#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "attention_tile.h"

/// How the backward kernel splits the queries of a key head into chunks, and where a chunk
/// accumulates dk and dv.
namespace sash::cpu::attn {

/// Consecutive query blocks of the heads that share a key head, and the sums of dk, dv and the
/// gradient of the relative bias over these queries. The first chunk that reads a key block adds
/// directly to the gradient if the rows of the gradient are contiguous whole vectors. Other chunks
/// have sums of their own, which are added afterwards in order.
template <class T>
class QueryChunk {
 public:
  /// The sums of a key block, [kBlockKeys][padded_width].
  struct Sums {
    T *dk = nullptr, *dv = nullptr;
    bool in_gradient = false;  ///< whether the sums are in the gradient itself
    bool zeroed = false;       ///< whether the sums were initialised
  };

  QueryChunk(const AttentionDims& dims, Index b, Index group, IndexRange tiles)
      : dims_(dims), b_(b), group_(group), tiles_(tiles), blocks_(dims, b, heads(), tiles) {}

  Index b() const { return b_; }
  Index group() const { return group_; }
  IndexRange tiles() const { return tiles_; }
  const BlockSet& blocks() const { return blocks_; }
  /// The heads of queries.
  IndexRange heads() const {
    const Index each = dims_.heads / dims_.groups;
    return {group_ * each, (group_ + 1) * each};
  }

  /// Allocates the sums. `earlier` are the chunks of the key head before this one.
  void allocate(const KernelContext& context, std::span<const std::optional<QueryChunk>> earlier,
                const kernels::AttentionGradients& to) {
    const Index width = padded_width<T>(dims_.depth), v_width = padded_width<T>(dims_.v_depth);
    const Rows<T> dk = head<T>(to.dk, b_, group_), dv = head<T>(to.dv, b_, group_);
    const bool dense = dk.stride == width && dv.stride == v_width;
    const bool whole =
        dense && width == dims_.depth && v_width == dims_.v_depth && dims_.keys % kGroup == 0;
    Index private_blocks = 0;
    blocks_.for_each([&](Index block) {
      const bool listed = std::any_of(earlier.begin(), earlier.end(), [block](const auto& chunk) {
        return chunk->blocks().contains(block);
      });
      Sums& sums = sums_.emplace_back();
      sums.in_gradient = whole && !listed;
      if (sums.in_gradient) {
        sums.dk = dk.row(block * kBlockKeys);
        sums.dv = dv.row(block * kBlockKeys);
      } else {
        ++private_blocks;
      }
    });
    distances_ = to.drelative ? to.drelative->shape[2] : 0;
    const std::array<Index, 3> sizes{private_blocks * kBlockKeys * width,
                                     private_blocks * kBlockKeys * v_width,
                                     heads().size() * distances_};
    memory_.emplace(context, sizes);
    T *next_dk = (*memory_)[0], *next_dv = (*memory_)[1];
    for (Sums& sums : sums_) {
      if (sums.in_gradient) continue;
      sums.dk = std::exchange(next_dk, next_dk + kBlockKeys * width);
      sums.dv = std::exchange(next_dv, next_dv + kBlockKeys * v_width);
    }
    std::fill_n((*memory_)[2], sizes[2], T(0));
  }

  /// The sums of a key block of this chunk. The first call fills them with zeros.
  const Sums& sums_of(Index block) {
    Sums& sums = sums_[static_cast<size_t>(blocks_.rank(block))];
    if (!sums.zeroed) {
      const Index rows = dims_.keys_of(block);
      std::fill_n(sums.dk, rows * padded_width<T>(dims_.depth), T(0));
      std::fill_n(sums.dv, rows * padded_width<T>(dims_.v_depth), T(0));
      sums.zeroed = true;
    }
    return sums;
  }
  /// The sums of a key block; null if they were never asked for.
  const Sums* find_sums(Index block) const {
    if (!blocks_.contains(block)) return nullptr;
    const Sums& sums = sums_[static_cast<size_t>(blocks_.rank(block))];
    return sums.zeroed ? &sums : nullptr;
  }
  /// The gradient of the relative bias of head h.
  T* drelative(Index h) const { return (*memory_)[2] + (h - heads().first) * distances_; }

 private:
  const AttentionDims& dims_;
  Index b_, group_;
  IndexRange tiles_;
  BlockSet blocks_;
  std::vector<Sums> sums_;  // by rank
  Index distances_ = 0;
  std::optional<Scratch<T, 3>> memory_;
};

/// The chunks of one key head.
template <class T>
using QueryChunks = std::span<const std::optional<QueryChunk<T>>>;

/// Adds the sums of one key block over all chunks. `sums` is a member of QueryChunk::Sums.
template <class T>
void reduce_rows(QueryChunks<T> chunks, Index block, Rows<T> to, Index count, Index width,
                 T* QueryChunk<T>::Sums::*sums) {
  bool written = false;
  for (const auto& chunk : chunks) {
    const auto* const part = chunk->find_sums(block);
    if (part && !part->in_gradient) {
      const T* row = part->*sums;
      for (Index j = 0; j < count; ++j, row += padded_width<T>(width)) {
        T* const y = to.row(block * kBlockKeys + j);
        if (written) {
          for (Index d = 0; d < width; ++d) y[d] += row[d];
        } else {
          std::copy_n(row, width, y);
        }
      }
    }
    written = written || part;
  }
  if (written) return;
  for (Index j = 0; j < count; ++j) std::fill_n(to.row(block * kBlockKeys + j), width, T(0));
}

}  // namespace sash::cpu::attn
