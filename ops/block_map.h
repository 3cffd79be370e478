#pragma once

#include <memory>
#include <string>
#include <vector>

#include "attention_mask.h"
#include "kernels/block_map.h"
#include "mask_part.h"

/// From a mask's expression to the lists that kernels walk.
namespace sash {

/// An expression whose parts are bound to lengths.
class BoundMask {
 public:
  BoundMask(const MaskTerm& term, const MaskShape& shape);

  /// Ascending ranges of keys that hold all that `queries` see, with little besides.
  TokenRanges find(MaskHead head, TokenRange queries) const;
  Coverage covers(MaskHead head, TokenRange queries, TokenRange keys) const;
  uint64_t word(MaskHead head, int64_t query, int64_t key) const;

 private:
  // Leaves and joints in the order of evaluation; a joint takes the last two results.
  struct Step {
    MaskTerm::Kind kind;
    std::unique_ptr<MaskRule> rule;
  };
  void add(const MaskTerm& term, const MaskShape& shape);

  std::vector<Step> steps_;
};

/// A block map, the memory it points to, and what it says about the work.
struct CompiledBlocks {
  kernels::BlockMap map;
  Tensor lists;               ///< int32
  Tensor words;               ///< int64: the bit tiles
  MaskStatistics statistics;  ///< of the batches and heads in the map
};

/// The block map of an expression, on `device`. Kept for the next call with an equal one: the last
/// few dozens are.
SASH_API std::shared_ptr<const CompiledBlocks> compile_blocks(const MaskTerm& term,
                                                              const MaskShape& shape,
                                                              int64_t query_rows, Device device);

/// Drops what is kept.
void forget_blocks();

}  // namespace sash
