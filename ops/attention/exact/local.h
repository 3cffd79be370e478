#pragma once

#include "../../../tensor/tensor.h"

/// Local attention in two steps, with its scores as a tensor [N, H, L, c] (the operations of
/// fast-transformers: Vyas et al., "Fast transformers with clustered attention", 2020). Slot k of
/// query l is key l + k - floor(c / 2), so that an even c leans left. `attention` under
/// `AttentionMask::window(c / 2, (c - 1) / 2)` is faster, and keeps no scores.
namespace sash {

struct LocalDotProductOptions {
  Tensor attn_mask{};    ///< additive, [L, L], dtype of q; only c of each row are read
  Tensor key_lengths{};  ///< int32 [N]: keys at or past key_lengths[n] are hidden
  /// Of slots whose key is hidden or outside [0, L); -inf in float16 if it is that large.
  double fill = -1e24;
};

/// a[n, h, l, k] = q[n, h, l] . key[j] + attn_mask[l, j] with j = l + k - floor(c / 2); q and k
/// [N, H, L, E], `context` = c. Floating dtypes, halves summed in float32. Differentiable any
/// number of times, in `attn_mask` too.
///
/// `ShapeError` unless the shapes fit, `ValueError` unless 1 <= c <= 2^29, `DTypeError`,
/// `DeviceError`.
SASH_API Tensor local_dot_product(const Tensor& q, const Tensor& k, int64_t context,
                                  const LocalDotProductOptions& options = {});

/// o[n, h, l] = sum over k of a[n, h, l, k] v[n, h, l + k - floor(c / 2)] over keys in [0, L):
/// a [N, H, L, c] and v [N, H, L, E] give [N, H, L, E]. Throws as `local_dot_product` does.
SASH_API Tensor local_weighted_average(const Tensor& a, const Tensor& v);

}  // namespace sash
