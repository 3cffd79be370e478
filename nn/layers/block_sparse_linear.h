#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "../../ops/sparse/block_sparse_matrix.h"
#include "linear.h"

namespace sash::nn {

struct BlockSparseLinearOptions {
  bool bias = true;
  double density = 0.1;            ///< share of the blocks that the layer has
  int64_t block = 32;              ///< 16, 32, 64 or 128; divides both extents
  std::optional<uint64_t> seed{};  ///< of the random pattern; by default drawn from the generator
};

/// A `Linear` whose weight is block-sparse from the start. The dense matrix is never made.
///
/// Parameters: `weight` [blocks, block, block] and `bias` [out], U(-1/sqrt(n), 1/sqrt(n)) at first
/// with n = density in, the mean number of inputs of an output. Buffer: `weight_blocks`.
class SASH_API BlockSparseLinear : public Linear {
 public:
  using Options = BlockSparseLinearOptions;

  /// With a random pattern.
  BlockSparseLinear(int64_t in_features, int64_t out_features,
                    const BlockSparseLinearOptions& options = {});
  /// With a pattern [out, in].
  explicit BlockSparseLinear(const BlockPattern& pattern, bool bias = true);
  /// Copies the pattern's blocks from another layer's weight, and shares its bias.
  BlockSparseLinear(const Linear& dense, const BlockPattern& pattern);
};

/// The dense twin of a block-sparse layer: y = x (weight * mask)^T + bias, with the same function
/// and gradients, for checks. Parameters `weight` [out, in] and `bias`, copied; buffer `mask`.
class SASH_API MaskedLinear : public Module {
 public:
  /// `ValueError` unless the layer is block-sparse.
  explicit MaskedLinear(const Linear& sparse);
  Tensor forward(const Tensor& x) override;

  Tensor weight, bias, mask;
};

/// Which blocks of a dense weight the layer retains.
enum class BlockChoice {
  largest,  ///< those with the largest norms
  random,   ///< drawn from a seed
  nonzero,  ///< all blocks that are not zero; the density is not used
};

struct SparsifyOptions {
  int64_t block = 32;
  BlockChoice choice = BlockChoice::largest;
  uint64_t seed = 0;  ///< for `random`; layers get different patterns
};

/// Makes those `Linear` layers of `model` block-sparse whose full names match `pattern`, an
/// ECMAScript regular expression for the whole name: "layers\\.[0-9]+\\.linear[12]". Returns their
/// names. The remaining blocks have their former elements. Call this before an optimizer is made.
///
/// Everything is checked before the first layer changes: `ValueError` if the expression is invalid
/// or matches no layer, a layer is block-sparse already, or its weight is tied to another;
/// `ShapeError` unless the block divides its extents.
SASH_API std::vector<std::string> sparsify(Module& model, const std::string& pattern,
                                           double density, const SparsifyOptions& options = {});

/// Gives each layer that is block-sparse in a saved dictionary its pattern there, so that
/// `load_state_dict` can load it. The weights are zeros until then. Returns the layers' names.
SASH_API std::vector<std::string> sparsify(Module& model, const StateDict& saved);

}  // namespace sash::nn
