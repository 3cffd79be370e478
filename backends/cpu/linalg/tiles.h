#pragma once

#include <algorithm>
#include <cstdint>

namespace sash::cpu {

inline int64_t round_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }
inline int64_t pieces(int64_t extent, int64_t piece) { return (extent + piece - 1) / piece; }

/// The size of equal pieces of `extent` > 0, each at most `most`, rounded up to a multiple of
/// `step`.
inline int64_t even_piece(int64_t extent, int64_t most, int64_t step) {
  return round_up(pieces(extent, pieces(extent, most)), step);
}

/// How a result [m, n] is cut into tiles. It depends on the shape alone.
struct Grid {
  int64_t rows, cols;            // size of a tile
  int64_t row_tiles, col_tiles;  // number of tiles

  /// rows, cols: the largest tile. row_step, col_step: a tile is a multiple of these. wanted:
  /// number of tiles for load balance. least_work: tiles with no more multiply-adds than this are
  /// not divided.
  struct Limits {
    int64_t rows, cols, row_step, col_step, wanted, least_work;
  };

  Grid(const Limits& limits, int64_t batch, int64_t m, int64_t n, int64_t k)
      : rows(even_piece(m, limits.rows, limits.row_step)),
        cols(even_piece(n, limits.cols, limits.col_step)) {
    count(m, n);
    while (batch * tiles() < limits.wanted && rows * cols * k > limits.least_work) {
      const bool even = cols % (2 * limits.col_step) == 0;
      if (rows >= cols || (!even && rows > limits.col_step)) {
        rows = even_piece(rows, pieces(rows, 2), limits.row_step);
      } else {
        cols = even_piece(cols, pieces(cols, 2), limits.col_step);
      }
      const int64_t before = tiles();
      count(m, n);
      if (tiles() == before) break;
    }
  }
  int64_t tiles() const { return row_tiles * col_tiles; }

 private:
  void count(int64_t m, int64_t n) {
    row_tiles = pieces(m, rows);
    col_tiles = pieces(n, cols);
  }
};

/// Cuts a result [m, n] and its depth k into tasks: large ones, but enough of them that threads
/// share the work evenly. Chunks of depth are summed separately.
struct DeepGrid {
  int64_t rows, cols, depth;             // size of a task
  int64_t row_tiles, col_tiles, chunks;  // number of tasks

  DeepGrid(int64_t row_step, int64_t col_step, int64_t batch, int64_t m, int64_t n, int64_t k)
      : rows(even_piece(m, kMostRows, row_step)),
        cols(even_piece(n, kMostCols, col_step)),
        depth(k) {
    constexpr int64_t kWanted = 16, kLeastWork = int64_t{1} << 21, kLeastSide = 128,
                      kLeastDepth = 512;
    for (;;) {
      row_tiles = pieces(m, rows);
      col_tiles = pieces(n, cols);
      chunks = pieces(k, depth);
      if (batch * tiles() >= kWanted || rows * cols * depth <= kLeastWork) break;
      const bool deep = batch == 1 && depth >= 2 * kLeastDepth && 2 * chunks * m * n <= kMostSplit;
      const int64_t shallow = deep ? depth : 0;
      const int64_t longest = std::max({rows, cols, shallow});
      if (longest <= kLeastSide + col_step) break;
      if (longest == shallow) {
        depth = pieces(depth, 2);
      } else if (longest == rows) {
        rows = even_piece(rows, pieces(rows, 2), row_step);
      } else {
        cols = even_piece(cols, pieces(cols, 2), col_step);
      }
    }
  }
  int64_t tiles() const { return row_tiles * col_tiles * chunks; }

 private:
  static constexpr int64_t kMostRows = 504, kMostCols = 384, kMostSplit = int64_t{1} << 20;
};

}  // namespace sash::cpu
