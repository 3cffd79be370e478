#pragma once

#include <algorithm>
#include <limits>

#include "../../ops/kernels/attention.h"
#include "panel.h"
#include "philox.h"

/// What the forward and the backward kernel share. Both work on tiles of kRows queries times
/// kKeyBlock keys, held as [keys][kRows]: a register's lanes are different queries, so that row
/// maxima and sums need no shuffles, and a tile is the packed left operand of the next product.
namespace sash::cpu {

void attention_backward(KernelContext& context, const TensorView& g, const TensorView& q,
                        const TensorView& k, const TensorView& v, const TensorView& out,
                        const TensorView& lse, const kernels::AttentionParams& params,
                        const TensorView& dq, const TensorView& dk, const TensorView& dv);

namespace attn {

using Index = int64_t;

inline constexpr Index kKeyBlock = 192;

template <class T>
inline constexpr int kRows = static_cast<int>(Panel<T>::kRows);

/// One number per query of a tile.
template <class T>
using Lanes = Eigen::Array<T, kRows<T>, 1>;
/// [n][kRows] seen as kRows x n, column-major.
template <class T>
using Tile = Eigen::Map<Eigen::Array<T, kRows<T>, Eigen::Dynamic>, Eigen::Aligned64>;

inline Index round_up(Index value, Index step) { return (value + step - 1) / step * step; }

/// Elements of scratch for n numbers, so that the next array starts on a cache line.
template <class T>
Index padded(Index n) {
  return round_up(n, 64 / static_cast<Index>(sizeof(T)));
}

/// Hands out pieces of one workspace.
template <class T>
class Scratch {
 public:
  Scratch(const KernelContext& context, Index elements)
      : memory_(context, elements * static_cast<Index>(sizeof(T))), next_(memory_.ptr<T>()) {}
  T* take(Index n) {
    T* piece = next_;
    next_ += padded<T>(n);
    return piece;
  }

 private:
  Workspace memory_;
  T* next_;
};

/// Rows [S, D] of one head.
template <class T>
struct Rows {
  T* data;
  Index stride;
};

template <class T>
Rows<T> head(const TensorView& x, Index b, Index h) {
  return {x.ptr<T>() + b * x.strides[0] + h * x.strides[1], x.strides[2]};
}

/// The queries [first, first + count) of head (b, h), and the keys [0, keys) that any of them sees.
struct Queries {
  Index b, h, first, count;
  Index offset;  ///< S_k - S_q
  Index keys;
  bool causal;

  Queries(const kernels::AttentionParams& params, Index b_, Index h_, Index first_, Index count_,
          Index queries, Index all_keys)
      : b(b_),
        h(h_),
        first(first_),
        count(count_),
        offset(all_keys - queries),
        keys(all_keys),
        causal(params.causal) {
    if (causal) keys = std::clamp<Index>(first + count + offset, 0, all_keys);
  }
};

/// A tile's rows, contiguous and filled up with zero rows to kRows: the memory itself if whole.
template <class T>
Rows<const T> whole_rows(Rows<const T> x, const Queries& tile, Index width, T* buffer) {
  const T* from = x.data + tile.first * x.stride;
  if (tile.count == kRows<T>) return {from, x.stride};
  std::fill_n(buffer, kRows<T> * width, T(0));
  for (Index i = 0; i < tile.count; ++i)
    std::copy_n(from + i * x.stride, width, buffer + i * width);
  return {buffer, width};
}

/// Scatters [width][kRows] to the tile's rows of y, times one factor per query.
template <class T>
void write_rows(const T* from, const Lanes<T>& factor, const Queries& tile, Index width,
                Rows<T> y) {
  constexpr Index kStep = 16;
  for (Index d = 0; d < width; d += kStep) {
    const Index n = std::min(kStep, width - d);
    for (Index i = 0; i < tile.count; ++i) {
      T* to = y.data + (tile.first + i) * y.stride + d;
      for (Index e = 0; e < n; ++e) to[e] = from[(d + e) * kRows<T> + i] * factor[i];
    }
  }
}

template <class T>
inline constexpr T kHidden = -std::numeric_limits<T>::infinity();

/// Sets the hidden scores of keys [first, first + keys) to -inf; false if none can be hidden.
template <class T>
bool hide(const kernels::AttentionParams& params, const Queries& tile, Index first, Index keys,
          Tile<T>& scores) {
  const bool on_edge = tile.causal && first + keys - 1 > tile.first + tile.offset;
  if (on_edge) {
    for (Index j = 0; j < keys; ++j) {
      const Index blind = std::min<Index>(first + j - tile.offset - tile.first, kRows<T>);
      if (blind > 0) scores.col(j).head(blind).setConstant(kHidden<T>);
    }
  }
  if (!params.mask) return on_edge;
  const Strides& step = params.mask->strides;
  const uint8_t* visible = params.mask->ptr<const uint8_t>() + tile.b * step[0] + tile.h * step[1] +
                           tile.first * step[2] + first * step[3];
  for (Index j = 0; j < keys; ++j) {
    const uint8_t* column = visible + j * step[3];
    if (step[2] == 0) {
      if (!*column) scores.col(j).setConstant(kHidden<T>);
      continue;
    }
    for (Index i = 0; i < tile.count; ++i) {
      if (!column[i * step[2]]) scores(i, j) = kHidden<T>;
    }
  }
  return true;
}

/// p = exp(p - shift), and exactly zero where hidden (Eigen's exp of -inf is not).
template <class T, class Column>
void exp_column(Column&& p, const Lanes<T>& shift, bool masked) {
  const Lanes<T> e = (p - shift).exp();
  if (masked) {
    p = (p == kHidden<T>).select(Lanes<T>::Zero(), e);
  } else {
    p = e;
  }
}

/// The factors 0 or 1 / (1 - p) of a block's weights.
template <class T>
void draw_dropout(const kernels::AttentionParams& params, const Queries& tile, Index heads,
                  Index queries, Index all_keys, Index first, Index keys, Tile<T>& factors) {
  const uint32_t threshold = dropout_threshold(params.dropout);
  const T kept = params.dropout == 1 ? T(0) : static_cast<T>(1 / (1 - params.dropout));
  const PhiloxState& state = params.philox;
  const uint64_t base = (state.base ? *state.base : 0) + state.offset;
  const Index row = ((tile.b * heads + tile.h) * queries + tile.first) * all_keys + first;
  uint64_t counter[kRows<T>];
  uint32_t lane[4][kRows<T>];
  Index phase[kRows<T>];
  for (Index i = 0; i < kRows<T>; ++i) {
    const Index element = row + i * all_keys;
    counter[i] = base + static_cast<uint64_t>(element / 4);
    phase[i] = element % 4;
  }
  const bool aligned = all_keys % 4 == 0;
  for (Index j = 0; j < keys + (aligned ? 0 : 3); j += 4) {
    philox_batch<kRows<T>>(state.seed, counter, lane);
    for (Index l = 0; l < 4; ++l) {
      if (aligned) {
        if (j + l >= keys) break;
        T* column = factors.data() + (j + l) * kRows<T>;
        for (Index i = 0; i < kRows<T>; ++i) column[i] = lane[l][i] >= threshold ? kept : T(0);
        continue;
      }
      for (Index i = 0; i < kRows<T>; ++i) {
        const Index at = j + l - phase[i];
        if (at >= 0 && at < keys) factors(i, at) = lane[l][i] >= threshold ? kept : T(0);
      }
    }
    for (uint64_t& c : counter) ++c;
  }
}

}  // namespace attn
}  // namespace sash::cpu
