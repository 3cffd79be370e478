#pragma once

#include <memory>

#include "../module.h"

namespace sash {
class BlockPattern;
class BlockSparseMatrix;
}  // namespace sash

namespace sash::nn {

struct LinearOptions {
  bool bias = true;
  /// False: the parameters are undefined until they are loaded.
  bool draw = true;
};

/// y = x weight^T + bias, for x of shape [..., in].
///
/// Parameters: `weight` [out, in] and `bias` [out], both U(-1/sqrt(in), 1/sqrt(in)) at first.
///
/// The weight may be block-sparse, from the start (`BlockSparseLinear`) or later
/// (`set_block_sparse_weight`, `sparsify`). The layer stays the same object, so members that refer
/// to it stay valid. `weight` is then [blocks, block, block], and a buffer `weight_blocks`, int32
/// [blocks, 2], has the row and column of each block. It is saved and loaded with the weight. If it
/// is written to, the next call uses the new pattern.
class SASH_API Linear : public Module {
 public:
  using Options = LinearOptions;

  /// `ValueError` unless both extents are positive.
  Linear(int64_t in_features, int64_t out_features, LinearOptions options = {});
  /// Uses existing parameters, for tied weights: `Linear(embedding.weight)`. `ShapeError` unless
  /// weight is [out, in] and bias, if defined, [out].
  explicit Linear(const Tensor& weight, const Tensor& bias = {});
  /// A block-sparse layer that shares the data of `weight`, which is a leaf.
  explicit Linear(const BlockSparseMatrix& weight, const Tensor& bias = {});
  /// Without parameters, y = x. It replaces a projection that is left out.
  Linear() = default;

  /// `ShapeError` unless the last extent of x is `in`.
  Tensor forward(const Tensor& x) override;
  std::string describe() const override;

  int64_t in_features() const;
  int64_t out_features() const;

  bool is_block_sparse() const { return weight_blocks.defined(); }
  /// Weight and pattern of a block-sparse layer. `ValueError` for a dense layer, or if
  /// `weight_blocks` was written to and is not a pattern.
  BlockSparseMatrix block_sparse_weight() const;
  /// Replaces the weight, dense or block-sparse, by the data of `matrix`, a leaf. An optimizer made
  /// before still has the old parameter. `ShapeError` unless the matrix is [out, in].
  void set_block_sparse_weight(const BlockSparseMatrix& matrix);

  Tensor weight;         ///< undefined in the identity
  Tensor bias;           ///< undefined without one
  Tensor weight_blocks;  ///< undefined unless the weight is block-sparse

 protected:
  void check_load(const StateCheck& given, const std::string& prefix) const override;

 private:
  class Pattern;
  std::shared_ptr<Pattern> pattern_;  ///< the pattern of `weight_blocks`
};

}  // namespace sash::nn
