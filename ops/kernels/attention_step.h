#pragma once

#include "../../core/backend/kernel.h"
#include "../../core/backend/tensor_view.h"

namespace sash::kernels {

/// Attention of one new token per batch over a cache, `composite::attention_step` in one pass.
struct AttentionStepParams {
  double scale = 1;
  double softcap = 0;                       ///< 0: none
  const TensorView* cos = nullptr;          ///< float32 [P, n], contiguous; null: no rotation
  const TensorView* sin = nullptr;          ///< the same
  bool interleaved = false;                 ///< pairs 2 i and 2 i + 1, not i and i + n
  int64_t recent = 0;                       ///< slots of the ring behind the first; 0: no ring
  int64_t first = 0;                        ///< slots before the ring
  const TensorView* sink_logits = nullptr;  ///< [H], contiguous, dtype of q, or null
};

/// q and out [B, H, 1, D], k and v [B, H_kv, 1, D], unit stride along the last axis; keys and
/// values [B, H_kv, slots, D], contiguous. One dtype, float32 or a half. D elements fill 16 to 512
/// bytes, in whole multiples of 16. position is one int64 on the device: with the ring full, slots
/// = first + recent; without, slots > position. P > position.
extern SASH_API
    Kernel<void(KernelContext&, const TensorView& q, const TensorView& k, const TensorView& v,
                const TensorView& keys, const TensorView& values, const TensorView& position,
                const AttentionStepParams&, const TensorView& out)>
        attention_step;

}  // namespace sash::kernels
