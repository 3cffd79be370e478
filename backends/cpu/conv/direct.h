#pragma once

#include <algorithm>
#include <utility>

#include "../../../core/backend/kernel.h"
#include "../../../core/parallel.h"
#include "../linalg/tiles.h"
#include "axis.h"
#include "window_sums.h"

namespace sash::cpu {

/// A convolution of x [N, C, H, W] to y [N, O, U, V] that reads windows in place. Vectors hold
/// filters of a group, a line of them in a tile. What a window has past the edges is left out.
template <class T>
class DirectConvolution {
  using Index = int64_t;
  using Sums = WindowSums<T>;
  static constexpr Index kPacket = MicroKernel<T>::kPacket, kLine = Sums::kLine;
  static constexpr Index kSize = sizeof(T), kWork = 65536, kMost = 262144 / kSize;

 public:
  DirectConvolution(const KernelContext& context, View x, const Shape& weight,
                    const kernels::SlidingWindows& windows, Index groups)
      : context_(context),
        x_(x),
        filters_(weight[0] / groups),
        channels_(weight[1]),
        rows_(windows, 0, x.shape[2]),
        columns_(windows, 1, x.shape[3]),
        tiles_(groups * per_group_) {}

  /// Whether the filters fill enough of the vectors.
  bool fits() const { return 4 * round_up(filters_, kPacket) <= 5 * filters_; }

  /// y = the products of weight [O, C / groups, KH, KW] with the windows, plus bias [O] or null.
  void forward(View weight, const TensorView* bias, T* y) const {
    const Index size = (depth_ + 1) * line_;
    const Workspace memory(context_, tiles_ * size * kSize);
    T* const lines = memory.ptr<T>();
    parallel_for_each(tiles_, kWork / size,
                      [&](Index tile) { pack(tile, weight, bias, lines + tile * size); });
    // Long lines of a result are written faster than many short ones.
    constexpr Index kWidest = 512, kTasks = 16;
    const Index items = x_.shape[0], width = even_piece(columns_.count, kWidest, 1);
    const Index cuts = pieces(columns_.count, width);
    const Index together = std::min<Index>(items, width > 64 ? 1 : width > 16 ? 4 : 8);
    const Index blocks = pieces(items, together) * tiles_;
    const Index most = std::max<Index>(1, kMost / (together * width * line_));
    const Index wanted = std::max(pieces(rows_.count, most), pieces(kTasks, blocks));
    const Index height = cuts > 1 ? 1 : pieces(rows_.count, wanted);
    const Index parts = pieces(rows_.count, height) * cuts;
    parallel_for_each(blocks * parts, kWork / (together * height * width * size), [&](Index task) {
      const Index tile = task % tiles_, part = task / tiles_ % parts;
      const Index n0 = task / tiles_ / parts * together;
      const Index top = part / cuts * height, left = part % cuts * width;
      const Block block{{n0, std::min(items, n0 + together)},
                        {top, std::min(rows_.count, top + height)},
                        {left, std::min(columns_.count, left + width)}};
      const Index positions = block.rows.size() * block.columns.size();
      const Workspace buffer(context_, block.items.size() * positions * line_ * kSize);
      T* const sums = buffer.ptr<T>();
      sum_block(block, tile / per_group_ * channels_, lines + tile * size, sums);
      for (Index n = 0; n < block.items.size(); ++n) {
        write(sums + n * positions * line_, positions, lanes(tile),
              y + plane_of(n0 + n, tile) * plane_ + top * columns_.count + left, plane_);
      }
    });
  }

  /// dw [O, C / groups, KH, KW] = the gradient of the weight from g, that of y. Both contiguous.
  void weight_gradient(const T* g, T* dw) const {
    constexpr Index kTogether = std::min<Index>(8, Sums::kItems);  // channels
    const Index items = x_.shape[0], item = plane_ * line_;
    const Index block = even_piece(items, std::max<Index>(1, kMost / (tiles_ * item)), 1);
    const Index channels = even_piece(channels_, kTogether, 1), parts = pieces(channels_, channels);
    const Workspace memory(context_, tiles_ * (block * item + depth_ * line_) * kSize);
    T* const sums = memory.ptr<T>();  // a line for each element of a window
    T* const lines = sums + tiles_ * depth_ * line_;
    for (Index n0 = 0; n0 < items; n0 += block) {
      const Index count = std::min(block, items - n0);
      parallel_for_each(tiles_ * count, kWork / item, [&](Index task) {
        const Index tile = task / count, n = task % count;
        read(g + plane_of(n0 + n, tile) * plane_, lanes(tile), lines + (tile * block + n) * item);
      });
      parallel_for_each(tiles_ * taps_ * parts, kWork / (count * item * channels), [&](Index task) {
        static constexpr T kZeros[kLine] = {};
        const Index tile = task / (taps_ * parts), c0 = task % parts * channels;
        const Index tap = task / parts % taps_, i = tap / columns_.kernel;
        const Index j = tap % columns_.kernel, step = taps_ * line_;
        const Axis::Range down = rows_.inside(i), across = columns_.inside(j);
        T* const sum = sums + (tile * depth_ + c0 * taps_ + tap) * line_;
        const T* const from = lines + tile * block * item;
        Sums::run({element(n0, tile / per_group_ * channels_ + c0, rows_.at(down.first, i),
                           columns_.at(across.first, j)),
                   from + (down.first * columns_.count + across.first) * line_,
                   n0 > 0 ? sum : kZeros, sum, x_.strides[1], n0 > 0 ? step : 0, step,
                   std::min(channels, channels_ - c0), line_},
                  {{count, down.size(), across.size()},
                   {x_.strides[0], rows_.stride * x_.strides[2], columns_.stride * x_.strides[3]},
                   {item, columns_.count * line_, line_}});
      });
    }
    parallel_for_each(tiles_, kWork / (depth_ * line_), [&](Index tile) {
      write(sums + tile * depth_ * line_, depth_, lanes(tile), dw + plane_of(0, tile) * depth_,
            depth_);
    });
  }

 private:
  struct Block {
    Axis::Range items, rows, columns;  // of y
  };

  // Tiles are numbered over all groups. The first plane of y's item `n` that a tile has:
  Index plane_of(Index n, Index tile) const {
    return (n * (tiles_ / per_group_) + tile / per_group_) * filters_ + tile % per_group_ * line_;
  }
  Index lanes(Index tile) const { return std::min(line_, filters_ - tile % per_group_ * line_); }
  const T* element(Index n, Index c, Index h, Index w) const {
    const Strides& s = x_.strides;
    return x_.ptr<const T>() + n * s[0] + c * s[1] + h * s[2] + w * s[3];
  }

  // A line of biases, then a line of weights for each element of a window.
  void pack(Index tile, View weight, const TensorView* bias, T* to) const {
    const Strides& step = weight.strides;
    const Index first = plane_of(0, tile), count = lanes(tile);
    std::fill_n(to, (depth_ + 1) * line_, T(0));
    for (Index o = 0; bias && o < count; ++o) {
      to[o] = bias->ptr<const T>()[(first + o) * bias->strides[0]];
    }
    for (Index k = 0; k < depth_; ++k) {
      const Index i = k % taps_ / columns_.kernel, j = k % columns_.kernel;
      const T* const from =
          weight.ptr<const T>() + first * step[0] + k / taps_ * step[1] + i * step[2] + j * step[3];
      for (Index o = 0; o < count; ++o) to[(k + 1) * line_ + o] = from[o * step[0]];
    }
  }

  // Windows that are computed together are neighbours in a row, or at one place of several items.
  void sum_block(const Block& block, Index channel, const T* lines, T* sums) const {
    const Index size = block.rows.size() * block.columns.size() * line_;
    const Axis::Range whole{columns_.inside(0).first, columns_.inside(columns_.kernel - 1).past};
    for (Index u = block.rows.first; u < block.rows.past; ++u) {
      const Axis::Range down = rows_.elements(u, u);
      for (Index v = block.columns.first, past = v; v < block.columns.past; v = past) {
        const bool inside = v >= whole.first && v < whole.past;
        past = inside ? std::min(whole.past, block.columns.past) : v + 1;
        const Axis::Range across =
            inside ? Axis::Range{0, columns_.kernel} : columns_.elements(v, v);
        const typename Sums::Box box{
            {channels_, down.size(), across.size()},
            {x_.strides[1], rows_.dilation * x_.strides[2], columns_.dilation * x_.strides[3]},
            {taps_ * line_, columns_.kernel * line_, line_}};
        const T* const from = element(block.items.first, channel, rows_.at(u, down.first),
                                      columns_.at(v, across.first));
        const T* const w = lines + (1 + down.first * columns_.kernel + across.first) * line_;
        T* const to = sums + (u - block.rows.first) * block.columns.size() * line_ +
                      (v - block.columns.first) * line_;
        struct {
          Index count, x_step, sum_step;
        } longer{past - v, columns_.stride * x_.strides[3], line_},
            other{block.items.size(), x_.strides[0], size};
        if (longer.count < other.count) std::swap(longer, other);
        const Index piece = even_piece(longer.count, Sums::kItems, 1);
        for (Index i = 0; i < other.count; ++i) {
          for (Index j = 0; j < longer.count; j += piece) {
            Sums::run({from + i * other.x_step + j * longer.x_step, w, lines,
                       to + i * other.sum_step + j * longer.sum_step, longer.x_step, 0,
                       longer.sum_step, std::min(piece, longer.count - j), line_},
                      box);
          }
        }
      }
    }
  }

  // Writes lines as `lanes` rows, `step` apart.
  void write(const T* lines, Index count, Index lanes, T* to, Index step) const {
    for (Index o = 0; o < lanes; o += kPacket) {
      for (Index p = 0; p < count; p += kPacket) {
        const Index width = std::min(kPacket, count - p), height = std::min(kPacket, lanes - o);
        const T* const from = lines + p * line_ + o;
        T* const corner = to + o * step + p;
        if (width == kPacket && height == kPacket) {
          MicroKernel<T>::transpose(from, line_, width, corner, step);
          continue;
        }
        for (Index i = 0; i < height; ++i) {
          for (Index l = 0; l < width; ++l) corner[i * step + l] = from[l * line_ + i];
        }
      }
    }
  }

  // Reads `lanes` planes as lines.
  void read(const T* from, Index lanes, T* lines) const {
    for (Index o = 0; o < lanes; o += kPacket) {
      Index p = 0;
      for (; p + kPacket <= plane_; p += kPacket) {
        MicroKernel<T>::transpose(from + o * plane_ + p, plane_, lanes - o - 1,
                                  lines + p * line_ + o, line_);
      }
      for (; p < plane_; ++p) {
        for (Index l = o; l < o + kPacket; ++l) {
          lines[p * line_ + l] = from[std::min(l, lanes - 1) * plane_ + p];
        }
      }
    }
  }

  const KernelContext& context_;
  View x_;
  Index filters_, channels_;  // of a group
  Axis rows_, columns_;
  Index line_ = pieces(filters_, kPacket) % 2 == 0 ? kLine : kPacket;
  Index per_group_ = pieces(filters_, line_), tiles_;
  Index plane_ = rows_.count * columns_.count;
  Index taps_ = rows_.kernel * columns_.kernel, depth_ = channels_ * taps_;
};

}  // namespace sash::cpu
