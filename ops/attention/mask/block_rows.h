#pragma once

#include <cstddef>
#include <vector>

#include "../../kernels/block_map.h"

namespace sash {

/// The block rows of one direction of a map while the host makes them: the arrays of a
/// `kernels::BlockList`.
struct BlockRows {
  explicit BlockRows(int64_t count) : rows(static_cast<size_t>(count)) {}

  std::vector<kernels::BlockRow> rows;
  std::vector<int32_t> block, tile, order;
  kernels::BlockList list{};  ///< its numbers are set; its pointers are null

  /// Sets `order` and all numbers of `list` except `contiguous`, which is set before. `rows` holds
  /// the block rows of `heads` heads.
  void schedule(int64_t heads);

 private:
  bool are_alike(const kernels::BlockRow& a, const kernels::BlockRow& b) const;
  int64_t in_common(const kernels::BlockRow& a, const kernels::BlockRow& b) const;
};

}  // namespace sash
