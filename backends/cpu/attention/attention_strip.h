#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "attention_tile.h"

/// How the backward kernel cuts a key head's queries into strips, and what a strip adds to the
/// gradients that strips share.
namespace sash::cpu::attn {

/// Some query blocks of the heads that read one key head, and its part of dk, dv and the relative
/// bias's gradient. The first strip that lists a key block sums in the gradient itself, if its rows
/// are whole vectors; the others sum in memory of their own, to be added in order afterwards.
template <class T>
class Strip {
 public:
  /// Where a block's rows are summed, [kBlockKeys][padded_width].
  struct Sums {
    T *dk = nullptr, *dv = nullptr;
    bool shared = false;   ///< in the gradient itself
    bool started = false;  ///< else there is nothing yet, not even zeros
  };

  Strip(const Problem& problem, Index b, Index group, Range tiles)
      : problem_(problem),
        b_(b),
        group_(group),
        tiles_(tiles),
        blocks_(problem, b, heads(), tiles) {}

  Index b() const { return b_; }
  Index group() const { return group_; }
  Range tiles() const { return tiles_; }
  const BlockSet& blocks() const { return blocks_; }
  /// The heads of queries.
  Range heads() const {
    const Index each = problem_.heads / problem_.groups;
    return {group_ * each, (group_ + 1) * each};
  }

  /// Finds memory for the sums, given the strips before this one.
  void place(const KernelContext& context, std::span<const std::optional<Strip>> earlier,
             const kernels::AttentionGradients& to) {
    const Index width = padded_width<T>(problem_.depth),
                v_width = padded_width<T>(problem_.v_depth);
    const bool whole =
        width == problem_.depth && v_width == problem_.v_depth && problem_.keys % kGroup == 0;
    const Rows<T> dk = head<T>(to.dk, b_, group_), dv = head<T>(to.dv, b_, group_);
    Index own = 0;
    blocks_.for_each([&](Index block) {
      const bool listed = std::any_of(earlier.begin(), earlier.end(), [block](const auto& strip) {
        return strip->blocks().contains(block);
      });
      Sums& sums = sums_.emplace_back();
      sums.shared = whole && !listed;
      if (sums.shared) {
        sums.dk = dk.row(block * kBlockKeys);
        sums.dv = dv.row(block * kBlockKeys);
      } else {
        ++own;
      }
    });
    distances_ = to.drelative ? to.drelative->shape[2] : 0;
    const std::array<Index, 3> sizes{own * kBlockKeys * width, own * kBlockKeys * v_width,
                                     heads().size() * distances_};
    memory_.emplace(context, sizes);
    T *next_dk = (*memory_)[0], *next_dv = (*memory_)[1];
    for (Sums& sums : sums_) {
      if (sums.shared) continue;
      sums.dk = std::exchange(next_dk, next_dk + kBlockKeys * width);
      sums.dv = std::exchange(next_dv, next_dv + kBlockKeys * v_width);
    }
    std::fill_n((*memory_)[2], sizes[2], T(0));
  }

  /// The sums of a listed block, to add to.
  const Sums& start(Index block) {
    Sums& sums = sums_[static_cast<size_t>(blocks_.rank(block))];
    if (!sums.started) {
      const Index rows = problem_.keys_of(block);
      std::fill_n(sums.dk, rows * padded_width<T>(problem_.depth), T(0));
      std::fill_n(sums.dv, rows * padded_width<T>(problem_.v_depth), T(0));
      sums.started = true;
    }
    return sums;
  }
  /// The sums of a block that was started; null for others.
  const Sums* find(Index block) const {
    if (!blocks_.contains(block)) return nullptr;
    const Sums& sums = sums_[static_cast<size_t>(blocks_.rank(block))];
    return sums.started ? &sums : nullptr;
  }
  /// The gradient of the relative bias of head h.
  T* drelative(Index h) const { return (*memory_)[2] + (h - heads().first) * distances_; }

 private:
  const Problem& problem_;
  Index b_, group_;
  Range tiles_;
  BlockSet blocks_;
  std::vector<Sums> sums_;  // by rank
  Index distances_ = 0;
  std::optional<Scratch<T, 3>> memory_;
};

/// The strips of one key head.
template <class T>
using Strips = std::span<const std::optional<Strip<T>>>;

/// Adds up what strips have for one key block: `sums` is the member of Strip::Sums.
template <class T>
void finish_rows(Strips<T> strips, Index block, Rows<T> to, Index count, Index width,
                 T* Strip<T>::Sums::*sums) {
  bool written = false;
  for (const auto& strip : strips) {
    const auto* const part = strip->find(block);
    if (part && !part->shared) {
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
