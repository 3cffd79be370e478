#pragma once

#include <Eigen/Core>
#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "../../../core/backend/dispatch.h"
#include "../../../core/parallel.h"
#include "../../../tensor/kernels/view.h"

/// All elementwise kernels over strided and broadcast operands use these loops.
///
/// Axes that are contiguous in all operands are merged. The elements are cut into fixed pieces, one
/// for a task, and each piece into blocks. A functor gets every operand of a block as contiguous
/// memory: the memory of the operand where the block is contiguous, otherwise a small buffer.
/// Inputs are gathered into the buffer before the call; the output is scattered after it. If rows
/// are short, a block covers several rows.
///
/// The output may be the same view as an input. The caller must avoid any other overlap.
namespace sash::cpu {

/// Elements in a piece, and in a block that needs a buffer.
inline constexpr int64_t kPiece = 32768;
inline constexpr int64_t kBlock = 512;

/// `memory`: axes may be reordered to follow the output's memory. `row_major`: the flat index that
/// the functor sees counts the output's elements in logical order.
enum class Order { memory, row_major };

using Steps = std::array<int64_t, kMaxRank>;

/// `N` operands (the output first) over common axes, outermost first; at least one axis.
template <size_t N>
struct Walk {
  int rank = 0;
  int64_t count = 1;
  Steps extent{};
  std::array<Steps, N> stride{};

  int64_t inner() const { return extent[static_cast<size_t>(rank - 1)]; }
};

namespace detail {

/// Step of `view` along `axis` of a shape of `rank` axes that it broadcasts to.
inline int64_t broadcast_stride(View view, int axis, int rank) {
  const int at = axis - (rank - view.rank());
  return at < 0 || view.shape[at] == 1 ? 0 : view.strides[at];
}

/// Whether axis `last` of the walk and a further, inner axis can be walked as one.
template <size_t N>
bool mergeable(const Walk<N>& walk, size_t last, int64_t extent,
               const std::array<int64_t, N>& step) {
  for (size_t k = 0; k < N; ++k) {
    if (walk.stride[k][last] != step[k] * extent) return false;
  }
  return true;
}

}  // namespace detail

/// The walk over these views. Axes of extent 1 are dropped and neighbours merged where possible.
/// The first view determines the shape; the others broadcast to it.
template <size_t N>
Walk<N> make_walk(const std::array<const TensorView*, N>& views, Order order) {
  Walk<N> walk;
  const TensorView& y = *views[0];
  std::array<int, kMaxRank> axes{};
  int kept = 0;
  for (int axis = 0; axis < y.rank(); ++axis) {
    walk.count *= y.shape[axis];
    if (y.shape[axis] == 1) continue;
    int at = kept++;
    while (order == Order::memory && at > 0 &&
           y.strides[axes[static_cast<size_t>(at - 1)]] < y.strides[axis]) {
      axes[static_cast<size_t>(at)] = axes[static_cast<size_t>(at - 1)];
      --at;
    }
    axes[static_cast<size_t>(at)] = axis;
  }
  for (int i = 0; i < kept; ++i) {
    const int axis = axes[static_cast<size_t>(i)];
    const int64_t extent = y.shape[axis];
    std::array<int64_t, N> step{};
    for (size_t k = 0; k < N; ++k) step[k] = detail::broadcast_stride(*views[k], axis, y.rank());
    const bool merge =
        walk.rank > 0 && detail::mergeable(walk, static_cast<size_t>(walk.rank - 1), extent, step);
    if (!merge) ++walk.rank;
    const auto at = static_cast<size_t>(walk.rank - 1);
    walk.extent[at] = merge ? walk.extent[at] * extent : extent;
    for (size_t k = 0; k < N; ++k) walk.stride[k][at] = step[k];
  }
  if (walk.rank == 0) {
    walk.rank = 1;
    walk.extent[0] = 1;
    for (Steps& stride : walk.stride) stride[0] = 1;
  }
  return walk;
}

/// A place in a walk: an index per axis.
struct Position {
  Steps index{};

  Position(const Steps& extent, int rank, int64_t flat) {
    for (auto axis = static_cast<size_t>(rank); axis-- > 0;) {
      index[axis] = flat % extent[axis];
      flat /= extent[axis];
    }
  }
  int64_t offset(const Steps& stride, int rank) const {
    int64_t at = 0;
    for (size_t axis = 0; axis < static_cast<size_t>(rank); ++axis)
      at += index[axis] * stride[axis];
    return at;
  }
};

/// Calls `run(offset, step, length)` for the row parts that `n` elements from `at` on fall into.
template <class F>
void for_each_row(const Steps& extent, const Steps& stride, int rank, Position at, int64_t n,
                  F&& run) {
  const auto last = static_cast<size_t>(rank - 1);
  int64_t offset = at.offset(stride, rank);
  for (;;) {
    const int64_t length = std::min(n, extent[last] - at.index[last]);
    run(offset, stride[last], length);
    n -= length;
    if (n == 0) return;
    offset -= at.index[last] * stride[last];
    at.index[last] = 0;
    for (size_t axis = last; axis-- > 0;) {
      offset += stride[axis];
      if (++at.index[axis] < extent[axis]) break;
      offset -= extent[axis] * stride[axis];
      at.index[axis] = 0;
    }
  }
}

/// One operand of a walk, as blocks of contiguous elements. Functions that copy are not inlined, so
/// that all kernels share them.
template <class T>
class Operand {
 public:
  template <size_t N>
  Operand(View view, const Walk<N>& walk, size_t number)
      : base_(view.ptr<T>()), stride_(walk.stride[number]), extent_(walk.extent), rank_(walk.rank) {
    int64_t dense = 1;
    for (auto axis = static_cast<size_t>(rank_); axis-- > 0;) {
      linear_ = linear_ && stride_[axis] == dense;
      constant_ = constant_ && stride_[axis] == 0;
      dense *= extent_[axis];
    }
    if (constant_) std::fill_n(buffer_, std::min(kBlock, walk.count), *base_);
  }
  Operand(const Operand&) = delete;
  Operand& operator=(const Operand&) = delete;

  bool linear() const { return linear_; }
  bool constant() const { return constant_; }
  /// Whether a part of one row can be used where it lies.
  bool unit() const { return linear_ || stride_[static_cast<size_t>(rank_ - 1)] == 1; }

  /// The memory of the block in the operand; null if the block needs the buffer. `in_row`: the
  /// block lies within one row.
  T* direct(const Position& at, int64_t flat, bool in_row) const {
    if (linear_) return base_ + flat;
    return in_row && unit() ? base_ + at.offset(stride_, rank_) : nullptr;
  }
  T* buffer() { return buffer_; }

  const T* read(const Position& at, int64_t flat, int64_t n, bool in_row) {
    if (constant_) return buffer_;
    if (const T* memory = direct(at, flat, in_row)) return memory;
    gather(at, n, buffer_);
    return buffer_;
  }

  /// Copies `n` elements from `at` on to contiguous memory.
  [[gnu::noinline]] void gather(const Position& at, int64_t n, T* to) const {
    for_each_row(extent_, stride_, rank_, at, n, [&](int64_t offset, int64_t step, int64_t length) {
      const T* from = base_ + offset;
      if (step == 1) {
        std::copy_n(from, length, to);
      } else if (step == 0) {
        std::fill_n(to, length, *from);
      } else {
        for (int64_t i = 0; i < length; ++i) to[i] = from[i * step];
      }
      to += length;
    });
  }

  /// Scatters the buffer to the elements of the block.
  [[gnu::noinline]] void write(const Position& at, int64_t n) const {
    const T* from = buffer_;
    for_each_row(extent_, stride_, rank_, at, n, [&](int64_t offset, int64_t step, int64_t length) {
      T* to = base_ + offset;
      for (int64_t i = 0; i < length; ++i) to[i * step] = from[i];
      from += length;
    });
  }

 private:
  T* base_;
  const Steps& stride_;
  const Steps& extent_;
  int rank_;
  bool linear_ = true;
  bool constant_ = true;
  alignas(64) T buffer_[kBlock];
};

namespace detail {

/// The bits of an element. Operands are walked as such, so that kernels of one size share the walk.
template <size_t size>
struct [[gnu::may_alias]] Word {
  std::conditional_t<
      size == 1, uint8_t,
      std::conditional_t<size == 2, uint16_t, std::conditional_t<size == 4, uint32_t, uint64_t>>>
      bits;
};

/// Calls `f(functor, flat, n, y, x)` for each block.
template <size_t... sizes>
using BlockFunction = void (*)(void*, int64_t, int64_t, void*, const Word<sizes>*...);

template <size_t out_size, size_t... sizes>
void walk_piece(const Walk<sizeof...(sizes) + 1>& walk, int64_t begin, int64_t end,
                BlockFunction<sizes...> f, void* functor, Operand<Word<out_size>>&& y,
                Operand<Word<sizes>>&&... x) {
  const bool dense = y.linear() && ((x.linear() || x.constant()) && ...);
  const bool buffered = !y.unit() || ((!x.unit()) || ...);
  const bool by_row = !dense && walk.inner() >= kBlock / 4;
  for (int64_t flat = begin; flat < end;) {
    const Position at(walk.extent, walk.rank, flat);
    const int64_t row_left = walk.inner() - at.index[static_cast<size_t>(walk.rank - 1)];
    int64_t n = end - flat;
    if (by_row) n = std::min(n, row_left);
    if (buffered || !(dense || by_row)) n = std::min(n, kBlock);
    const bool in_row = n <= row_left;
    auto* const out = y.direct(at, flat, in_row);
    f(functor, flat, n, out ? out : y.buffer(), x.read(at, flat, n, in_row)...);
    if (!out) y.write(at, n);
    flat += n;
  }
}

template <size_t out_size, size_t... sizes, size_t... K, class... Views>
[[gnu::noinline]] void walk_blocks(Order order, BlockFunction<sizes...> f, void* functor,
                                   std::index_sequence<K...>, View y, const Views&... x) {
  const auto walk = make_walk<sizeof...(sizes) + 1>({&y, &x...}, order);
  parallel_for(walk.count, kPiece, [&](int64_t begin, int64_t end) {
    walk_piece<out_size, sizes...>(walk, begin, end, f, functor,
                                   Operand<Word<out_size>>(y, walk, 0),
                                   Operand<Word<sizes>>(x, walk, K + 1)...);
  });
}

}  // namespace detail

/// Calls `f(flat, n, Out* y, const In*... x)` for blocks of `n` contiguous elements that cover `y`;
/// `flat` is the index of the first in the order of the walk. Inputs broadcast to y's shape.
/// Flattened, because a call per vector slows GELU by a fifth.
template <class Out, class... In, class F, class... Views>
void for_each_block(Order order, F f, View y, const Views&... x) {
  static_assert(sizeof...(In) == sizeof...(Views), "one element type per input");
  detail::walk_blocks<sizeof(Out)>(
      order,
      +[](void* functor, int64_t flat, int64_t n, void* out, const detail::Word<sizeof(In)>*... in)
          __attribute__((flatten)) {
            (*static_cast<F*>(functor))(flat, n, static_cast<Out*>(out),
                                        reinterpret_cast<const In*>(in)...);
          },
      &f, std::index_sequence_for<Views...>{}, y, x...);
}

template <class T>
using BlockOut = Eigen::Map<Eigen::Array<T, Eigen::Dynamic, 1>>;
template <class T>
using BlockIn = Eigen::Map<const Eigen::Array<T, Eigen::Dynamic, 1>>;

/// y = f(x...): calls `f(BlockOut<Out> y, BlockIn<In>... x)` for blocks that cover `y`.
template <class Out, class... In, class F, class... Views>
void elementwise(F f, View y, const Views&... x) {
  for_each_block<Out, In...>(
      Order::memory,
      [&f](int64_t, int64_t n, Out* out, const In*... in) {
        f(BlockOut<Out>(out, n), BlockIn<In>(in, n)...);
      },
      y, x...);
}

}  // namespace sash::cpu
