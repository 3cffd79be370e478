#pragma once

#include "../../core/kernel.h"
#include "../../core/philox.h"
#include "../../core/tensor_view.h"

/// Attention o = dropout(softmax(scale q k' where visible)) v, never holding the S_q x S_k matrix.
/// q [B, H, S_q, D], k [B, H_kv, S_k, D], v [B, H_kv, S_k, D_v], one floating dtype, unit stride
/// along the last axis, other strides free; query head h reads key head h H_kv / H.
namespace sash::kernels {

struct AttentionParams {
  double scale = 1;
  /// Key j is hidden from query i if j > i + S_k - S_q.
  bool causal = false;
  /// bool [B, H, S_q, S_k], stride 0 where broadcast; false hides. Null: nothing is hidden.
  const TensorView* mask = nullptr;
  double dropout = 0;
  /// Element [b, h, i, j] of the probabilities has the row-major index of [B, H, S_q, S_k].
  PhiloxState philox;
};

/// out [B, H, S_q, D_v] (contiguous), and lse [B, H, S_q] = log of the sum of exp(score) over the
/// visible keys, in float32 for the halves. A query that sees no key gets out = 0 and lse = +inf.
extern SASH_API
    Kernel<void(KernelContext&, const TensorView& q, const TensorView& k, const TensorView& v,
                const AttentionParams&, const TensorView& out, const TensorView& lse)>
        attention_forward;

/// The gradients dq, dk, dv (contiguous, written, not added to) of sum(g . out).
extern SASH_API Kernel<void(KernelContext&, const TensorView& g, const TensorView& q,
                            const TensorView& k, const TensorView& v, const TensorView& out,
                            const TensorView& lse, const AttentionParams&, const TensorView& dq,
                            const TensorView& dk, const TensorView& dv)>
    attention_backward;

}  // namespace sash::kernels
