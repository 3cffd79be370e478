#pragma once

#include "gemm.h"
#include "micro_kernel.h"
#include "tiles.h"

namespace sash::cpu {

/// Tiles of products on MicroKernel.
template <class T>
class PackedProduct {
  using Index = int64_t;
  using Kernel = MicroKernel<T>;
  static constexpr Index kPacket = Kernel::kPacket, kCols = Kernel::kCols;
  // Rows a page apart share the sets of the L1 cache; panels whose rows are farther apart than
  // kNear leave much of the caches unused.
  static constexpr Index kPage = 4096 / static_cast<Index>(sizeof(T));
  static constexpr Index kNear = std::min(kPage / 2, 16 * kCols);

 public:
  /// The depth of each block except the last. Bits depend on it, so it is computed from `k` alone.
  static Index block_depth(Index k) {
    return even_piece(std::max<Index>(k, 1), Kernel::kDepth, kPacket);
  }

  /// Packs rows [k0, k0 + depth) of B [k, n] as panels.
  static void pack_panels(const Matrix<const T>& b, Index n, Index k0, Index depth, T* to) {
    if (b.col_stride == 1) {
      copy_panels(b.at(k0, 0), b.row_stride, depth, n, to);
    } else {
      for (Index j = 0; j < n; j += kCols) {
        transpose_panel(b.at(k0, j), b.row_stride, b.col_stride, depth, std::min(kCols, n - j),
                        to + j * depth);
      }
    }
  }

  /// Whether panels of B can be used in place: rows must be whole vectors and must not be far
  /// apart.
  static bool panels_in_place(const Product<T>& p) {
    return p.b.col_stride == 1 && p.n % kPacket == 0 && p.b.row_stride <= kNear;
  }

  /// Computes the product `p`, one block of depth after the other. `panels(k0, depth)` returns the
  /// packed panels of a block of B's rows, or null if B is used in place. `p` is a part of a
  /// product with `all_rows` rows; it begins at row `above` of that product.
  template <class Panels>
  static void run(const KernelContext& context, const Product<T>& p, Index block, Index above,
                  Index all_rows, Panels&& panels) {
    static constexpr T kZeros[kCols] = {};
    using Strip = typename Kernel::Strip;
    const bool by_row = p.a.col_stride == 1, in_place = by_row && p.a.row_stride % kPage != 0;
    const Index rows = even_piece(p.m, Kernel::kRows, 1), group = by_row ? rows : 16 * rows;
    const Index together = by_row ? 1 : Kernel::kLineStep / rows, unit = together * rows;
    const Index strip_size = in_place ? 0 : Kernel::kStripSize;
    const Workspace memory(context,
                           pieces(group, unit) * strip_size * static_cast<Index>(sizeof(T)));
    T* const strips = memory.template ptr<T>();
    const bool adds = !p.bias && p.beta != T(0);
    for (Index i = 0; adds && p.beta != T(1) && i < p.m; ++i) {
      for (Index j = 0; j < p.n; ++j) *p.c.at(i, j) *= p.beta;
    }
    // Lines are copied in whole vectors: near the last row, some elements too early.
    const auto early = [&](Index i) {
      return by_row || all_rows < Kernel::kLineStep
                 ? Index{0}
                 : std::max<Index>(0, above + i + Kernel::kLineStep - all_rows);
    };
    for (Index k0 = 0; k0 < p.k; k0 += block) {
      const Index depth = std::min(block, p.k - k0);
      const T* const b = panels(k0, depth);
      for (Index i0 = 0; i0 < p.m; i0 += group) {
        const Index past = std::min(i0 + group, p.m);
        if (by_row && !in_place) {
          copy_rows(p.a.at(i0, k0), p.a.row_stride, past - i0, depth, strips);
        } else if (!by_row) {
          const bool vectors = p.a.row_stride == 1 && all_rows >= Kernel::kLineStep;
          copy_lines(p.a, k0, depth, i0, past, unit, vectors, early, strips);
        }
        for (Index i = i0; i < past; i += rows) {
          const Index first_row = i - (i - i0) % unit;  // of the strips in the same lines
          Strip strip{
              by_row ? Strip::by_row : Strip::by_line,
              strips + (first_row - i0) / unit * strip_size + early(first_row) + i - first_row,
              Kernel::kRowStep};
          if (in_place) strip = {Strip::by_row, p.a.at(i, k0), p.a.row_stride};
          for (Index j = 0; j < p.n; j += kCols) {
            const T* const first = p.bias ? p.bias + j : kZeros;
            const Index ahead = i + rows + j / kCols * 4;
            const bool more = by_row && ahead + 4 <= std::min(i + 2 * rows, p.m);
            const typename Kernel::Panel panel{b ? b + j * depth : p.b.at(k0, j),
                                               b ? kCols : p.b.row_stride};
            Kernel::run(strip, panel, std::min(rows, past - i), std::min(kCols, p.n - j), depth,
                        p.alpha, k0 > 0 || adds ? nullptr : first, p.c.at(i, j), p.c.row_stride,
                        more ? p.a.at(ahead, k0) : nullptr, p.a.row_stride);
          }
        }
      }
    }
  }

 private:
  static void copy_panels(const T* from, Index step, Index depth, Index n, T* to) {
    const Index whole = n / kCols * kCols;
    for (Index k = 0; k < depth; ++k, from += step, to += kCols) {
      T* line = to;
      for (Index j = 0; j < whole; j += kCols, line += depth * kCols) {
        for (Index l = 0; l < kCols; l += kPacket) {
          __builtin_prefetch(from + 8 * step + j + l);
          Kernel::copy(from + j + l, line + l);
        }
      }
      if (whole < n) {
        std::copy(from + whole, from + n, line);
        std::fill(line + n - whole, line + kCols, T(0));
      }
    }
  }

  static void transpose_panel(const T* from, Index row_step, Index col_step, Index depth,
                              Index cols, T* to) {
    for (Index j = 0; j < kCols; j += kPacket) {
      const Index count = std::clamp<Index>(cols - j, 0, kPacket);
      Index k = 0;
      if (row_step == 1) {
        for (; k + kPacket <= depth; k += kPacket) {
          Kernel::transpose(from + j * col_step + k, col_step, cols - 1 - j, to + k * kCols + j,
                            kCols);
        }
      }
      for (; k < depth; ++k) {
        for (Index l = 0; l < kPacket; ++l) {
          to[k * kCols + j + l] = l < count ? from[(j + l) * col_step + k * row_step] : T(0);
        }
      }
    }
  }

  static void copy_rows(const T* from, Index step, Index rows, Index depth, T* to) {
    for (Index i = 0; i < rows; ++i) {
      std::copy_n(from + i * step, depth, to + i * Kernel::kRowStep);
    }
  }

  // Copies the rows [first, past) to strips of `rows` rows each. It copies a part of the depth at a
  // time, so that what one strip reads is still in the L1 cache for the next strip.
  template <class Early>
  static void copy_lines(const Matrix<const T>& a, Index k0, Index depth, Index first, Index past,
                         Index rows, bool vectors, Early&& early, T* to) {
    constexpr Index kTogether = 16;
    for (Index k = 0; k < depth; k += kTogether, to += kTogether * Kernel::kLineStep) {
      const Index lines = std::min(kTogether, depth - k);
      T* strip = to;
      for (Index i = first; i < past; i += rows, strip += Kernel::kStripSize) {
        const T* from = a.at(vectors ? i - early(i) : i, k0 + k);
        const Index count = std::min(rows, past - i);
        T* line = strip;
        for (Index n = 0; n < lines; ++n, from += a.col_stride, line += Kernel::kLineStep) {
          __builtin_prefetch(from + kTogether * a.col_stride);
          if (vectors) {
            for (Index l = 0; l < Kernel::kLineStep; l += kPacket) Kernel::copy(from + l, line + l);
          } else {
            for (Index l = 0; l < count; ++l) line[l] = from[l * a.row_stride];
          }
        }
      }
    }
  }
};

}  // namespace sash::cpu
