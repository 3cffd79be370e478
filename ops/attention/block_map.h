#pragma once

#include <memory>
#include <mutex>

#include "../../core/backend/backend.h"
#include "../kernels/block_map.h"
#include "mask/mask_part.h"
#include "mask_statistics.h"

/// Compiles a mask's expression to the block map that kernels read (docs/block_maps.md).
namespace sash {

/// Orders readers on any stream after the one write of some memory.
class WrittenOnce {
 public:
  /// The write is what the current stream of `device` has queued.
  explicit WrittenOnce(Device device);
  ~WrittenOnce();
  WrittenOnce(const WrittenOnce&) = delete;
  WrittenOnce& operator=(const WrittenOnce&) = delete;

  /// Makes `stream` wait for the write, once. Whether it is another stream than the writer's.
  bool order_after_write(Stream stream);

 private:
  Device device_;
  Stream writer_;
  Event written_;
  std::mutex mutex_;
  SmallVector<Stream, 4> ordered_;
};

/// A block map with its memory.
struct CompiledBlockMap {
  kernels::BlockMap map;
  Tensor lists;               ///< int32: the block rows
  Tensor words;               ///< int64: the bit tiles
  MaskStatistics statistics;  ///< of the map's batches and heads
  std::unique_ptr<WrittenOnce> written{};

  /// Of `lists` and `words`.
  int64_t bytes() const;
  /// Call before the current stream of the map's device, or a graph it captures, reads the map.
  void use() const;
};

/// Compiles `term` for blocks of `query_rows` queries, into memory of `device`. `ShapeError` or
/// `ValueError` if the mask does not fit.
std::shared_ptr<CompiledBlockMap> compile_block_map(const MaskTerm& term, const MaskShape& shape,
                                                    int64_t query_rows, Device device);

}  // namespace sash
