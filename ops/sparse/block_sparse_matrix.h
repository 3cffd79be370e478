#pragma once

#include <span>

#include "block_pattern.h"

namespace sash {

/// A matrix W [rows, columns] of which only the blocks of a pattern may be other than zero.
///
/// `data()` [blocks, block, block] holds block k of the pattern at data[k]. It is an ordinary
/// tensor: a leaf that requires grad, or the result of ops. Products are in block_sparse_matmul.h.
class SASH_API BlockSparseMatrix {
 public:
  /// `ShapeError` unless data is [blocks, block, block], `DTypeError` unless it is floating.
  BlockSparseMatrix(BlockPattern pattern, const Tensor& data);

  static BlockSparseMatrix zeros(const BlockPattern& pattern, const TensorOptions& options = {});
  static BlockSparseMatrix ones(const BlockPattern& pattern, const TensorOptions& options = {});
  /// Standard normal in the pattern's blocks.
  static BlockSparseMatrix randn(const BlockPattern& pattern, const TensorOptions& options = {});
  /// The pattern's blocks of `dense`; the others are dropped. Recorded. For a pattern made from the
  /// matrix see `BlockPattern::largest` and `nonzero`. `ShapeError` unless the shapes agree.
  static BlockSparseMatrix from_dense(const Tensor& dense, const BlockPattern& pattern);

  const BlockPattern& pattern() const { return pattern_; }
  const Tensor& data() const { return data_; }
  int64_t rows() const { return pattern_.rows(); }
  int64_t columns() const { return pattern_.columns(); }

  /// [rows, columns], zeros outside the pattern. Recorded.
  Tensor to_dense() const;
  /// The pattern as a [rows, columns] matrix of ones and zeros, of the dtype and device of `data`.
  Tensor dense_mask() const;

 private:
  BlockPattern pattern_;
  Tensor data_;
};

/// The Frobenius norm of every block: [blocks], of the dtype of the data, float32 for halves.
/// Recorded; the gradient of a zero block is 0.
SASH_API Tensor block_norm(const BlockSparseMatrix& matrix);

/// Moves blocks: block `positions[i]` of the data goes to `places[i]` of the grid and gets the
/// elements blocks[i], zeros without `blocks`. The order of all others, and so the state that an
/// optimizer keeps for them, stays. Recorded, in the data and in `blocks`. `ValueError` unless the
/// positions are distinct blocks and the places free; `ShapeError` unless blocks is
/// [moved, block, block].
SASH_API BlockSparseMatrix block_replace(const BlockSparseMatrix& matrix,
                                         std::span<const int64_t> positions,
                                         std::span<const BlockCoordinate> places,
                                         const Tensor& blocks = {});

}  // namespace sash
