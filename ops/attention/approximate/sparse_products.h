#pragma once

#include "../../../tensor/tensor.h"

/// Products with chosen keys only: what attention to a list of keys per query is made of. Shapes
/// are q [B, H, N, D], k [B, H_kv, S, D], index int64 [B, H, N, K] with values in [0, S), or -1 for
/// no key; H is a multiple of H_kv, and head h reads head floor(h H_kv / H). Floating dtypes,
/// sums of halves in float32. Memory is O(N K). Differentiable any number of times in all but the
/// index; the order of every sum is fixed.
///
/// `ShapeError`, `DTypeError` or `DeviceError` unless the arguments fit; `IndexError` for an index
/// out of range, on CUDA at the next synchronisation.
namespace sash {

/// y[b, h, n, j] = q[b, h, n] . k[b, h, index[b, h, n, j]], 0 where there is no key.
SASH_API Tensor sparse_dot_product(const Tensor& q, const Tensor& k, const Tensor& index);

/// y[b, h, n] = sum over j of w[b, h, n, j] v[b, h, index[b, h, n, j]]; w has the index's shape.
SASH_API Tensor sparse_weighted_average(const Tensor& w, const Tensor& v, const Tensor& index);

}  // namespace sash
