#pragma once

#include <array>

#include "../../../tensor/tensor.h"

namespace sash {

/// Queries [B, heads, S, D], keys and values [B, kv_heads, S, D] as views of their packed
/// projection [B, S, (heads + 2 kv_heads) D]; kv_heads = 0 means heads. Recorded as one op, whose
/// backward writes the three gradients into one tensor in a single pass. `ShapeError` unless the
/// last extent divides.
SASH_API std::array<Tensor, 3> split_packed_heads(const Tensor& packed, int64_t heads,
                                                  int64_t kv_heads = 0);

/// x [B, S, heads D] as [B, heads, S, D], a view where x is contiguous. `ShapeError` unless the
/// last extent divides.
SASH_API Tensor split_heads(const Tensor& x, int64_t heads);

/// x [B, heads, S, D] as [B, S, heads D]. `ShapeError` unless x has 4 axes.
SASH_API Tensor merge_heads(const Tensor& x);

}  // namespace sash
