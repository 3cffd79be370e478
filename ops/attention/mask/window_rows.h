#pragma once

#include <functional>

#include "../../../core/range.h"
#include "block_rows.h"

namespace sash {

/// One axis of the scores in blocks.
struct BlockAxis {
  int64_t length, block;
  bool ragged_is_full;  ///< whether places past the end count as visible: queries do, keys do not

  int64_t blocks() const { return (length + block - 1) / block; }
  IndexRange of(int64_t number) const {
    return {number * block, std::min((number + 1) * block, length)};
  }
  bool is_ragged(int64_t number) const { return (number + 1) * block > length; }
};

/// The block rows of a window, in which row i sees the columns [i + low, i + high], low <= high. In
/// a block row, all blocks are consecutive, and the full blocks among them too. So only the partial
/// blocks are listed. `tile_of(row, column)` gives the bit tile of a partial block.
BlockRows window_rows(const BlockAxis& rows, const BlockAxis& columns, int64_t low, int64_t high,
                      const std::function<int32_t(int64_t, int64_t)>& tile_of);

}  // namespace sash
