#pragma once

#include <cstdlib>

#include "attention_tile.h"

/// Scores: the products of queries and keys, plus the biases.
namespace sash::cpu::attn {

/// Biases that depend only on the distance j - p: relative bias and ALiBi. A segment has
/// keys + kRows - 1 diagonals. Diagonal x holds the pairs with x = keys - 1 - j + i, so the lanes
/// of a column read consecutive diagonals.
template <class T>
class Diagonals {
 public:
  static constexpr Index kSize = kStepKeys + kRows;

  Diagonals(const AttentionDims& dims, Index h) {
    if (const TensorView* x = dims.params.relative_bias) {
      relative_ = {x->ptr<const T>() + h * x->strides[0], x->strides[1]};
      reach_ = (x->shape[1] - 1) / 2;
    }
    if (const TensorView* x = dims.params.slopes) slope_ = x->ptr<const T>()[h * x->strides[0]];
    any_ = dims.params.relative_bias || dims.params.slopes;
    offset_ = dims.offset();
  }

  /// Adds the diagonals' values to the scores of a segment.
  void add(const QueryTile& tile, const Segment& segment, T* scores) const {
    if (!any_) return;
    T value[kSize];
    for (Index x = 0; x < segment.keys + kRows; ++x) {
      const Index distance = distance_of(tile, segment, x);
      value[x] = -slope_ * static_cast<T>(std::abs(distance));
      if (relative_.data) value[x] += *relative_.row(place_of(distance));
    }
    for (Index j = 0; j < segment.keys; ++j) {
      const T* const from = value + segment.keys - 1 - j;
      for (Index i = 0; i < kRows; ++i) scores[j * kRows + i] += from[i];
    }
  }

  /// sums[clamp(j - p, -R, R) + R] += gradients[i, j].
  void sum(const QueryTile& tile, const Segment& segment, const T* gradients, T* sums) const {
    T value[kSize] = {};
    for (Index j = 0; j < segment.keys; ++j) {
      T* const to = value + segment.keys - 1 - j;
      for (Index i = 0; i < kRows; ++i) to[i] += gradients[j * kRows + i];
    }
    for (Index x = 0; x < segment.keys + kRows; ++x) {
      sums[place_of(distance_of(tile, segment, x))] += value[x];
    }
  }

 private:
  Index distance_of(const QueryTile& tile, const Segment& segment, Index diagonal) const {
    return segment.key + segment.keys - 1 - diagonal - tile.first - offset_;
  }
  Index place_of(Index distance) const { return std::clamp(distance, -reach_, reach_) + reach_; }

  Rows<const T> relative_{};
  Index reach_ = 0, offset_ = 0;
  T slope_ = 0;
  bool any_ = false;
};

/// The part of a bias [B, H, S_q, S_k], or of its gradient, for a tile and a segment. A row of the
/// bias is a query, but a column of a tile is a query. So squares of registers are transposed.
template <class T>
class BiasPart {
 public:
  BiasPart(const TensorView& x, const AttentionDims& dims, const QueryTile& tile,
           const Segment& segment)
      : data_(x.ptr<T>() + tile.b * x.strides[0] + tile.h * x.strides[1] +
              tile.first * x.strides[2] + segment.key * x.strides[3]),
        query_step_(x.strides[2]),
        key_step_(x.strides[3]),
        queries_(tile.count),
        keys_(std::min(segment.keys, dims.keys - segment.key)) {}

  void add_to(T* scores) const {
    for_each_square(
        [&](Index i, Index j) {
          alignas(64) T square[kSide * kSide];
          Panel<T>::transpose({at(i, j), query_step_}, kSide, {square, kSide});
          for (Index k = 0; k < kSide; ++k) {
            T* const column = scores + (j + k) * kRows + i;
            for (Index l = 0; l < kSide; ++l) column[l] += square[k * kSide + l];
          }
        },
        [&](Index i, Index j) { scores[j * kRows + i] += *at(i, j); });
  }
  void take_from(const T* gradients) const {
    for_each_square(
        [&](Index i, Index j) {
          Panel<T>::transpose({gradients + j * kRows + i, kRows}, kSide, {at(i, j), query_step_});
        },
        [&](Index i, Index j) { *at(i, j) = gradients[j * kRows + i]; });
  }

 private:
  static constexpr Index kSide = Panel<T>::kPacket;

  T* at(Index i, Index j) const { return data_ + i * query_step_ + j * key_step_; }

  // Calls square(i, j) for kSide queries from i on and kSide keys from j on, and single(i, j) for
  // each remaining pair.
  template <class Square, class Single>
  void for_each_square(Square&& square, Single&& single) const {
    const bool contiguous = key_step_ == 1;
    const Index whole_i = contiguous ? queries_ / kSide * kSide : 0;
    const Index whole_j = contiguous ? keys_ / kSide * kSide : 0;
    for (Index i = 0; i < whole_i; i += kSide) {
      for (Index j = 0; j < whole_j; j += kSide) square(i, j);
    }
    for (Index j = 0; j < keys_; ++j) {
      for (Index i = j < whole_j ? whole_i : 0; i < queries_; ++i) single(i, j);
    }
  }

  T* data_;
  Index query_step_, key_step_, queries_, keys_;
};

/// s = softcap tanh(s / softcap). If `slopes` is not null, it gets the derivative 1 - tanh^2.
template <class T>
void cap(T softcap, Index count, T* scores, T* slopes) {
  using Array = Eigen::Map<Eigen::Array<T, Eigen::Dynamic, 1>, Eigen::Aligned64>;
  Array s(scores, count);
  s = (s / softcap).tanh();
  if (slopes) Array(slopes, count) = T(1) - s.square();
  s *= softcap;
}

/// Computes the scores of a segment's keys, also of hidden pairs. `q` is [depth][kRows], `keys` are
/// the rows of the segment's keys. If `slopes` is not null, it gets the derivatives of the softcap.
template <class T>
void form_scores(const AttentionDims& dims, const QueryTile& tile, const Segment& segment,
                 const Diagonals<T>& diagonals, const T* q, Rows<const T> keys, T* scores,
                 T* slopes = nullptr) {
  const kernels::AttentionParams& params = dims.params;
  multiply_visible(segment, q, keys, dims.depth, static_cast<T>(params.scale), scores);
  if (params.softcap > 0) {
    cap(static_cast<T>(params.softcap), segment.keys * kRows, scores, slopes);
  }
  if (params.bias) BiasPart<T>(*params.bias, dims, tile, segment).add_to(scores);
  diagonals.add(tile, segment, scores);
}

}  // namespace sash::cpu::attn
