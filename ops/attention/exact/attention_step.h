#pragma once

#include "attention.h"
#include "rotary.h"

namespace sash {

struct AttentionStepOptions {
  std::optional<double> scale{};  ///< as in `AttentionOptions`
  double softcap = 0;
  RotaryAngles angles{};  ///< [P, n] of the positions from 0 on; undefined: no rotation
  RotaryLayout layout = RotaryLayout::half_split;
  CausalReach reach{};  ///< which tokens are kept and seen; exact
  Tensor sink_logits{};
};

/// Attention of the token at `position`, an int64 of one element, over keys and values [B, H_kv,
/// slots, D] that hold the tokens before it: q [B, H, 1, D] and k [B, H_kv, 1, D] are rotated, k
/// and v [B, H_kv, 1, D] are written to the token's slot, and q attends to all slots in use. Result
/// [B, H, 1, D].
///
/// A token's slot is its position. With `reach.recent`, tokens from `reach.first` on take turns in
/// the next `recent` slots. The position is read on the device, so a recorded `Graph` may move it
/// on; it must be below P and have a slot, which plain ops check by an `IndexError`.
///
/// Nothing is recorded for gradients. `ShapeError`, `DTypeError` or `DeviceError` unless the
/// tensors fit; `ValueError` for a reach that is not exact or has no recent tokens, for a scale or
/// a softcap that `attention` refuses, and for caches that are not contiguous.
SASH_API Tensor attention_step(const Tensor& q, const Tensor& k, const Tensor& v,
                               const Tensor& keys, const Tensor& values, const Tensor& position,
                               const AttentionStepOptions& options = {});

/// Whether one kernel computes the step for keys [B, H_kv, slots, D]. If not, plain ops do, and
/// read the position on the host.
SASH_API bool has_attention_step_kernel(const Tensor& keys);

namespace composite {
/// `attention_step` from plain ops.
SASH_API Tensor attention_step(const Tensor& q, const Tensor& k, const Tensor& v,
                               const Tensor& keys, const Tensor& values, const Tensor& position,
                               const AttentionStepOptions& options = {});
}  // namespace composite

}  // namespace sash
