#pragma once

#include <array>

#include "../../../tensor/tensor.h"

namespace sash {

/// Which features are rotated together: i and i + dim / 2 (half_split: Llama, GPT-NeoX), or 2 i and
/// 2 i + 1 (interleaved: GPT-J, and the paper).
enum class RotaryLayout { half_split, interleaved };

/// The angle of each pair of features at each position.
struct RotaryAngles {
  Tensor cos;  ///< [S, dim / 2] or [B, S, dim / 2]
  Tensor sin;  ///< the same
};

/// Rotary position embedding (Su et al., "RoFormer", 2021): the first dim features of x
/// [B, H, S, D] are rotated in pairs (a, b) by the angle of their position and pair,
///
///     (a, b) -> (a cos - b sin, a sin + b cos),
///
/// the other D - dim features stay. cos and sin are float32, or float64 for a float64 x. They are
/// constants: they get no gradient. The result has the memory layout of x. `ShapeError`,
/// `DTypeError` or `DeviceError` unless the tensors are as described and x is floating.
SASH_API Tensor rotary(const Tensor& x, const RotaryAngles& angles,
                       RotaryLayout layout = RotaryLayout::half_split);

/// `split_packed_heads`, then `rotary` of queries and keys, in one pass over packed
/// [B, S, (heads + 2 kv_heads) D] forward and one backward. The rotation is in place where nothing
/// else refers to the elements of packed, or of the gradient of the result.
SASH_API std::array<Tensor, 3> split_rotary_heads(Tensor packed, const RotaryAngles& angles,
                                                  int64_t heads, int64_t kv_heads = 0,
                                                  RotaryLayout layout = RotaryLayout::half_split);

namespace detail {
/// Throws as `rotary` does.
SASH_API void check_rotary(const char* op, const Tensor& x, const RotaryAngles& angles);
/// The angles as [B or 1, S, dim / 2].
SASH_API RotaryAngles angles_of_batch(const RotaryAngles& angles);
}  // namespace detail

namespace composite {
/// `rotary` from plain ops.
SASH_API Tensor rotary(const Tensor& x, const RotaryAngles& angles,
                       RotaryLayout layout = RotaryLayout::half_split);
}  // namespace composite

}  // namespace sash
