#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "../../tensor/tensor.h"

namespace sash {

namespace kernels {
struct BlockPatternView;
}

/// A place in a grid of blocks.
struct BlockCoordinate {
  int64_t row = 0, column = 0;
  friend bool operator==(const BlockCoordinate&, const BlockCoordinate&) = default;
};

/// Which blocks of a matrix may be other than zero: an immutable value, cheap to copy.
///
/// The matrix [rows, columns] is a grid of square blocks of 16, 32, 64 or 128. The order of
/// `coordinates()` is the order of the blocks in memory. The indices that kernels read (compressed
/// rows and columns) are made once, and copied once to each device.
class SASH_API BlockPattern {
 public:
  /// `ValueError` for another block size, a coordinate outside the grid or given twice, or 2^30
  /// blocks; `ShapeError` unless the block divides both extents, into fewer than 2^31 each.
  BlockPattern(int64_t rows, int64_t columns, int64_t block,
               std::vector<BlockCoordinate> coordinates);

  /// Every block.
  static BlockPattern full(int64_t rows, int64_t columns, int64_t block);
  /// round(density * blocks) distinct blocks, at least one if the density is positive; the same for
  /// a seed on every machine. `ValueError` unless 0 <= density <= 1.
  static BlockPattern random(int64_t rows, int64_t columns, int64_t block, double density,
                             uint64_t seed);
  /// The blocks that a bool [rows / block, columns / block] marks.
  static BlockPattern from_mask(const Tensor& mask, int64_t block);
  /// The blocks of `dense` with the largest Frobenius norms, as many as `random` would take. Among
  /// equal norms, the first in row-major order.
  static BlockPattern largest(const Tensor& dense, int64_t block, double density);
  /// The blocks of `dense` with an element other than zero.
  static BlockPattern nonzero(const Tensor& dense, int64_t block);
  /// A pattern from the result of `to_tensor`: int32 or int64 [blocks, 2].
  static BlockPattern from_tensor(const Tensor& coordinates, int64_t rows, int64_t columns,
                                  int64_t block);

  int64_t rows() const;
  int64_t columns() const;
  int64_t block() const;
  int64_t block_rows() const { return rows() / block(); }
  int64_t block_columns() const { return columns() / block(); }
  /// The number of blocks.
  int64_t blocks() const { return static_cast<int64_t>(coordinates().size()); }
  /// blocks / (block_rows block_columns); 0 of an empty grid.
  double density() const;
  const std::vector<BlockCoordinate>& coordinates() const;

  /// Row and column of each block: int32 [blocks, 2], on the CPU.
  Tensor to_tensor() const;
  /// bool [block_rows, block_columns], on the CPU. On the device of the queries it is the same
  /// pattern for attention: `AttentionMask::block_sparse(mask().to(device), block())`.
  Tensor mask() const;
  /// The position of each place of the grid, row by row, or `blocks()` where there is no block:
  /// int64 [block_rows block_columns], on the CPU.
  Tensor positions() const;

  /// Whether both have the same shape, and the same blocks in the same order.
  friend SASH_API bool operator==(const BlockPattern& a, const BlockPattern& b);

  /// For kernels on `device`; valid while a copy of the pattern lives.
  kernels::BlockPatternView view(Device device) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

namespace detail {
/// x [rows, columns] as [block_rows block_columns, block block], a block per row. Recorded.
SASH_API Tensor to_blocks(const Tensor& x, int64_t block);
/// The inverse, for a matrix [rows, columns].
SASH_API Tensor from_blocks(const Tensor& blocks, int64_t rows, int64_t columns, int64_t block);
/// The Frobenius norm of each x[i] of x [n, ...]: float64, or float32 of halves. Recorded; the
/// gradient at 0 is 0.
SASH_API Tensor norms(const Tensor& x);
}  // namespace detail

}  // namespace sash
