#pragma once

#include <array>

#include "../../../tensor/tensor.h"

/// How heads lie in memory. Results of attention get the layout of its inputs, so that the products
/// before and after it need no copies.
namespace sash::detail {

/// The heads of one projection, and their features.
struct Packing {
  int64_t heads, kv_heads, head_dim;

  int64_t heads_of(size_t part) const { return part == 0 ? heads : kv_heads; }
  int64_t width() const { return (heads + 2 * kv_heads) * head_dim; }
};

/// Queries [B, heads, S, D], keys and values [B, kv_heads, S, D] as views of packed
/// [B, S, (heads + 2 kv_heads) D].
std::array<Tensor, 3> parts_of(const Tensor& packed, const Packing& packing);

/// The contiguous packed tensor that `parts` are all of; undefined if there is none.
Tensor whole_of(std::span<const Tensor> parts, const Packing& packing);

/// x [B, H, S, D] with stride 1 along the last axis, as kernels need it: x, or a copy. Not
/// recorded.
Tensor with_unit_rows(const Tensor& x);

/// x [B, H, S, D] as [B, H_kv, H / H_kv, S, D]: the query heads of each key head together.
Tensor grouped_heads(const Tensor& x, int64_t kv_heads);

/// Uninitialised [B, H, S, width] for x [B, H, S, D]: the heads of a token side by side if they are
/// so in x, contiguous if not.
Tensor empty_in_layout_of(const Tensor& x, int64_t width);

/// Uninitialised tensors like q, k and v: parts of a whole if these are parts of one packed tensor,
/// else each in its own layout.
std::array<Tensor, 3> empty_gradients(const std::array<Tensor, 3>& qkv);

}  // namespace sash::detail
