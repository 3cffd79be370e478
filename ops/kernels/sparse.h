#pragma once

#include "../../tensor/kernels/view.h"

#include <cstdint>

namespace sash::kernels {

/// The blocks of each block row (or column): line l has those number starts[l] .. starts[l + 1].
/// Block e is in column (row) `other[e]`, its elements are block `positions[e]` of the data.
struct BlockLines {
  int64_t count = 0;
  const int32_t* starts = nullptr;     ///< [count + 1]
  const int32_t* other = nullptr;      ///< [blocks], ascending within a line
  const int32_t* positions = nullptr;  ///< [blocks]
  const int32_t* order = nullptr;      ///< [count] lines, those of most blocks first
};

/// Up to `blocks_per_group` neighbours in a block row: `rows.other[first]` and on.
struct BlockGroup {
  int32_t row, first, count;
};

/// Where the non-zero blocks of a matrix are. The pointers are of the tensors' device.
struct BlockPatternView {
  int64_t block = 0;   ///< 16, 32, 64 or 128
  int64_t blocks = 0;  ///< of the data
  BlockLines rows, columns;
  const BlockGroup* groups = nullptr;  ///< [group_count], of every block row
  int64_t group_count = 0;
};

/// How many blocks of a row share the part of the left matrix that a kernel reads.
constexpr int64_t blocks_per_group(int64_t block) { return block == 128 ? 1 : 256 / block; }

/// y = a W' + bias (`transposed`), or a W: data [blocks, block, block] are the blocks of W; a and y
/// are contiguous matrices, as wide as W has columns and rows, or rows and columns. `bias` is
/// contiguous, or null. One floating dtype.
extern SASH_API Kernel<void(KernelContext&, View a, View data, const TensorView* bias,
                            const BlockPatternView& pattern, bool transposed, View y)>
    block_sparse_matmul;

/// data [blocks, block, block] = the pattern's blocks of a' b: a [M, rows] and b [M, columns] are
/// contiguous. One floating dtype.
extern SASH_API
    Kernel<void(KernelContext&, View a, View b, const BlockPatternView& pattern, View data)>
        sampled_matmul;

}  // namespace sash::kernels
