#pragma once

#include <memory>

#include "../../../core/backend/backend.h"
#include "../../kernels/block_map.h"
#include "mask_part.h"

/// Compiles a mask's expression to the block map that kernels read (docs/block_maps.md).
namespace sash {

class WrittenOnce;

/// A block map with its memory.
struct CompiledBlockMap {
  kernels::BlockMap map;
  Tensor lists;  ///< int32: the block rows
  Tensor words;  ///< int64: the bit tiles
  std::shared_ptr<WrittenOnce> written{};

  /// The bytes of `lists` and `words`.
  int64_t bytes() const {
    return lists.numel() * size_of(lists.dtype()) + words.numel() * size_of(words.dtype());
  }
  /// Call before the current stream of the map's device, or a graph it captures, reads the map.
  void use() const;
};

/// Compiles `term` for blocks of `query_rows` queries, into memory of `device`. `ShapeError` or
/// `ValueError` if the mask does not fit.
std::shared_ptr<CompiledBlockMap> compile_block_map(const MaskTerm& term, const MaskShape& shape,
                                                    int64_t query_rows, Device device);

}  // namespace sash
