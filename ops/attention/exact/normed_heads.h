#pragma once

#include "../../norm/rms_norm.h"
#include "rotary.h"

namespace sash {

/// The norms of a layer's queries and keys.
struct HeadNorms {
  Tensor q_weight, k_weight;  ///< [D], dtype of what they normalise
  RmsNormOptions options{};
};

/// `split_packed_heads` with queries and keys normalised, each head by itself (`rms_norm` over D),
/// and then rotated if angles are given: the same as these ops one after the other, in one pass
/// over packed [B, S, (heads + 2 kv_heads) D] forward and back. Halves are computed in float32 and
/// rounded once. Errors as of these ops.
SASH_API std::array<Tensor, 3> split_normed_heads(const Tensor& packed, const HeadNorms& norms,
                                                  int64_t heads, int64_t kv_heads = 0,
                                                  const RotaryAngles& angles = {},
                                                  RotaryLayout layout = RotaryLayout::half_split);

namespace composite {
/// The same from these ops.
SASH_API std::array<Tensor, 3> split_normed_heads(const Tensor& packed, const HeadNorms& norms,
                                                  int64_t heads, int64_t kv_heads = 0,
                                                  const RotaryAngles& angles = {},
                                                  RotaryLayout layout = RotaryLayout::half_split);
}  // namespace composite

}  // namespace sash
