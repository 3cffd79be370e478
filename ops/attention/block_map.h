#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "../../core/backend.h"
#include "../kernels/block_map.h"
#include "mask/attention_mask.h"
#include "mask/mask_part.h"

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

/// Lets streams read memory that was written once, on one of them.
class WrittenOnce {
 public:
  /// What the current stream of `device` has queued writes the memory.
  explicit WrittenOnce(Device device);
  ~WrittenOnce();
  WrittenOnce(const WrittenOnce&) = delete;
  WrittenOnce& operator=(const WrittenOnce&) = delete;

  /// Whether `stream` is another one. The first time it is told to wait until the memory is
  /// written.
  bool reach(Stream stream);

 private:
  Device device_;
  Stream writer_;
  Event written_;
  std::mutex mutex_;
  SmallVector<Stream, 4> waited_;
};

/// A block map, the memory it points to, and what it says about the work.
struct CompiledBlocks {
  kernels::BlockMap map;
  Tensor lists;               ///< int32
  Tensor words;               ///< int64: the bit tiles
  MaskStatistics statistics;  ///< of the batches and heads in the map
  std::unique_ptr<WrittenOnce> written{};

  /// Bytes of the lists and tiles.
  int64_t bytes() const;
  /// Before the current stream of the map's device, or a graph that it captures, reads the map.
  void use() const;
};

/// The block map of an expression, on `device`. Kept for the next call with an equal one, within
/// `set_mask_cache_limit`. Call `use` before kernels get it.
SASH_API std::shared_ptr<const CompiledBlocks> compile_blocks(const MaskTerm& term,
                                                              const MaskShape& shape,
                                                              int64_t query_rows, Device device);

/// The same, whatever is kept.
std::shared_ptr<CompiledBlocks> compile_anew(const MaskTerm& term, const MaskShape& shape,
                                             int64_t query_rows, Device device);

/// Drops what is kept.
void forget_blocks();

}  // namespace sash
