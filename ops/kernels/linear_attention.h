#pragma once

#include "../../tensor/kernels/view.h"

/// Linear attention. With phi(x) = x + 1 for x > 0, else exp(x), a = phi(q[i]) . phi(k[j]) and sums
/// over the visible keys j:
///
///     out[i] = sum a v[j] / den[i],    den[i] = sum a + eps
///
/// q [B, H, S_q, D], k [B, H_kv, S_k, D], v [B, H_kv, S_k, D_v], one floating dtype, unit stride
/// along the last axis, other strides free; query head h reads key head h H_kv / H. C below is the
/// type of the arithmetic: float64 for float64, else float32. No S_q x S_k matrix is held.
namespace sash::kernels {

struct LinearAttentionInputs {
  TensorView q, k, v;
};

inline void add_operands(KernelCall& call, const LinearAttentionInputs& x) {
  for (const TensorView* operand : {&x.q, &x.k, &x.v}) add_operands(call, *operand);
}

struct LinearAttentionParams {
  bool causal = false;  ///< key j is visible to query i if j <= i; S_q = S_k
  double eps = 0;
  /// int32 [B] by its stride: only keys before lengths[b] are visible; in [0, S_k]. The others may
  /// hold anything. Null: all keys.
  const TensorView* lengths = nullptr;
  /// uint8 [the result of `linear_attention_kept_bytes`]: results of the forward pass that the
  /// backward pass then does not compute again. Null: nothing is kept, or was kept.
  const TensorView* kept = nullptr;
};

/// Sets `bytes` to the size of `LinearAttentionParams::kept` for `inputs`; 0 if this backend does
/// not use it.
extern SASH_API Kernel<void(KernelContext&, const LinearAttentionInputs&,
                            const LinearAttentionParams&, int64_t& bytes)>
    linear_attention_kept_bytes;

/// out [B, H, S_q, D_v] and den [B, H, S_q] (C), both contiguous.
extern SASH_API Kernel<void(KernelContext&, const LinearAttentionInputs&,
                            const LinearAttentionParams&, View out, View den)>
    linear_attention_forward;

struct LinearAttentionGradients {
  TensorView g;           ///< [B, H, S_q, D_v], unit stride along the last axis
  TensorView out, den;    ///< as the forward kernel left them
  TensorView dq, dk, dv;  ///< contiguous, written whole
};

inline void add_operands(KernelCall& call, const LinearAttentionGradients& x) {
  for (const TensorView* operand : {&x.g, &x.out, &x.den, &x.dq, &x.dk, &x.dv}) {
    add_operands(call, *operand);
  }
}

/// The gradients of sum(g . out). With h[i] = g[i] / den[i], c[i] = -(g[i] . out[i]) / den[i] and
/// b = h[i] . v[j] + c[i]:
///
///     dq[i] = phi'(q[i]) sum b phi(k[j]),  dk[j] = phi'(k[j]) sum b phi(q[i]),  dv[j] = sum a h[i]
///
/// No float atomics: the same bits every time.
extern SASH_API Kernel<void(KernelContext&, const LinearAttentionInputs&,
                            const LinearAttentionParams&, const LinearAttentionGradients&)>
    linear_attention_backward;

}  // namespace sash::kernels
