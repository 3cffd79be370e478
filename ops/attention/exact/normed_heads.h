#pragma once

#include "../../norm/rms_norm.h"
#include "rotary.h"

namespace sash {

/// The norms of a layer's queries and keys.
struct HeadNorms {
  Tensor q_weight, k_weight;  ///< [D], dtype of the queries and keys
  RMSNormOptions options{};
};

/// `split_packed_heads`, then `rms_norm` over D of each head of queries and keys, then `rotary` if
/// angles are given. One pass over packed [B, S, (heads + 2 kv_heads) D] forward and one backward.
/// Halves are computed in float32 and rounded once. Throws as these ops do.
SASH_API std::array<Tensor, 3> split_normed_heads(const Tensor& packed, const HeadNorms& norms,
                                                  int64_t heads, int64_t kv_heads = 0,
                                                  const RotaryAngles& angles = {},
                                                  RotaryLayout layout = RotaryLayout::half_split);

namespace composite {
/// `split_normed_heads` from these ops.
SASH_API std::array<Tensor, 3> split_normed_heads(const Tensor& packed, const HeadNorms& norms,
                                                  int64_t heads, int64_t kv_heads = 0,
                                                  const RotaryAngles& angles = {},
                                                  RotaryLayout layout = RotaryLayout::half_split);
}  // namespace composite

}  // namespace sash
