#pragma once

#include "block_sparse_matrix.h"

/// Products of dense matrices with a block-sparse W. They are each other's gradients, so all can be
/// differentiated any number of times. Work and memory grow with the number of blocks. One floating
/// dtype; halves are summed in float32 and rounded once.
namespace sash {

/// y = x W' + bias along the last axis: x [..., columns], W [rows, columns], bias [rows] or
/// undefined, y [..., rows].
SASH_API Tensor block_sparse_linear(const Tensor& x, const BlockSparseMatrix& weight,
                                    const Tensor& bias = {});

/// y = a W: a [..., rows], W [rows, columns], y [..., columns].
SASH_API Tensor block_sparse_matmul(const Tensor& a, const BlockSparseMatrix& w);

/// The blocks of a' b that are in `pattern`, and no others: a [..., rows] and b [..., columns],
/// summed over all leading axes, which agree. Also known as a sampled dense-dense product.
SASH_API BlockSparseMatrix sampled_matmul(const Tensor& a, const Tensor& b,
                                          const BlockPattern& pattern);

}  // namespace sash
