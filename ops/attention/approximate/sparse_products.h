#pragma once

#include "../../../tensor/tensor.h"

/// Products with a list of keys for each query, for attention to these keys alone. Shapes are q [B,
/// H, N, D], k [B, H_kv, S, D], index int64 [B, H, N, K] with values in [0, S), or -1 for no key; H
/// is a multiple of H_kv, and head h of q reads head floor(h H_kv / H) of k. Floating dtypes;
/// halves are summed in float32. Memory is O(N K). Differentiable any number of times, except in
/// the index. The order of every sum is fixed.
///
/// `ShapeError`, `DTypeError` or `DeviceError` unless the arguments fit; `IndexError` for an index
/// out of range, on CUDA at the next synchronisation.
namespace sash {

/// y[b, h, n, j] = q[b, h, n] . k[b, h, index[b, h, n, j]], 0 where there is no key.
SASH_API Tensor sparse_dot_product(const Tensor& q, const Tensor& k, const Tensor& index);

/// y[b, h, n] = sum over j of w[b, h, n, j] v[b, h, index[b, h, n, j]]; w has the index's shape.
SASH_API Tensor sparse_weighted_average(const Tensor& w, const Tensor& v, const Tensor& index);

}  // namespace sash
