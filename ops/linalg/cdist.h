#pragma once

#include "../../tensor/tensor.h"

namespace sash {

/// d_ij = |a_i - b_j|, the `norm` of order p >= 0, for the rows of a [..., M, D] and b [..., N, D]:
/// [..., M, N], where batch axes broadcast. Floating dtypes. The derivative is 0 where a distance
/// is 0.
///
/// For p = 2 and more than 25 rows of a or b, distances come from one matrix product,
/// |a|^2 + |b|^2 - 2 a b, as in PyTorch: rows that are close, compared with their length, lose
/// digits. Other distances take memory for M N D elements.
///
/// `ShapeError` unless both have D columns and batch axes broadcast, `ValueError` for p < 0.
SASH_API Tensor cdist(const Tensor& a, const Tensor& b, double p = 2);

}  // namespace sash
