#pragma once

#include "../../tensor/kernels/view.h"

/// The gated delta rule, for each value head h with its query and key head floor(h H / H_v):
///
///     S[t] = Diag(a[t]) S[t - 1] + k[t] u[t]',    a[t] = exp(g[t])
///     u[t] = beta[t] (v[t] - S[t - 1]' (a[t] k[t])),    or v[t] without beta
///     out[t] = scale S[t]' q[t]
///
/// Within a chunk of tokens t, S the state before it, a(i, t] the product of a[i + 1] ... a[t] and
/// b[t] = a(0, t], sums over the chunk's tokens i:
///
///     y[t] = v[t] - S' (b[t] k[t]),    u[t] = beta[t] (y[t] - sum of A[t, i] u[i] over i < t)
///     out[t] = scale (S' (b[t] q[t]) + sum of P[t, i] u[i] over i <= t)
///     A[t, i] = k[t] . a(i, t] k[i],    P[t, i] = q[t] . a(i, t] k[i]
///
/// so u = N (beta y) with N = (I + beta A)^-1. No quotient is formed. All decays are products of
/// a <= 1. With a decay for each head, kernels on tensor cores form these products as exponentials
/// of sums of g.
///
/// q and k [B, H, S, D], v [B, H_v, S, D_v], one floating dtype, unit stride along the last axis,
/// other strides free. C below is the type of the arithmetic: float64 for float64, else float32;
/// tensors of C are contiguous. No S x S matrix is held.
namespace sash::kernels {

constexpr int64_t kDeltaChunk = 64;  ///< tokens

struct DeltaInputs {
  TensorView q, k, v;
  const TensorView* g = nullptr;        ///< C, [B, H_v, S] or [B, H_v, S, D]; null: 0
  const TensorView* beta = nullptr;     ///< C, [B, H_v, S]; null: without the delta term
  const TensorView* initial = nullptr;  ///< C, [N, H_v, D, D_v]; null: 0
  /// int32 [N + 1], ascending from 0 to S, checked before, on CUDA clamped by the kernels: the
  /// packed texts, B = 1. Null: N = B.
  const TensorView* texts = nullptr;
  double scale = 1;

  int64_t text_count() const { return texts ? texts->shape[0] - 1 : q.shape[0]; }
  /// Places for data of chunks, by shapes alone. For packed texts, text i, which begins at token t,
  /// may have those from floor(t / kDeltaChunk) + i on: no two texts have one place.
  int64_t slots() const {
    return texts ? q.shape[2] / kDeltaChunk + text_count() : q.shape[0] * slots_of_row();
  }
  int64_t slots_of_row() const { return (q.shape[2] + kDeltaChunk - 1) / kDeltaChunk; }
  /// The numbers of all states before chunks.
  int64_t states_size() const { return slots() * v.shape[1] * q.shape[3] * v.shape[3]; }
};

inline void add_operands(KernelCall& call, const DeltaInputs& x) {
  for (const TensorView* operand : {&x.q, &x.k, &x.v}) add_operands(call, *operand);
  for (const TensorView* operand : {x.g, x.beta, x.initial}) add_operands(call, operand);
}

/// Sets `bytes` to the size of what the forward pass keeps for the backward pass: the states before
/// chunks, and whatever else this backend keeps.
extern SASH_API Kernel<void(KernelContext&, const DeltaInputs&, int64_t& bytes)>
    delta_rule_kept_bytes;

/// out [B, H_v, S, D_v] (dtype of q), contiguous; state [N, H_v, D, D_v] (C), after the last token;
/// kept: uint8 [the result of `delta_rule_kept_bytes`], or null for a call without gradients.
extern SASH_API
    Kernel<void(KernelContext&, const DeltaInputs&, View out, View state, const TensorView* kept)>
        delta_rule_forward;

struct DeltaGradients {
  TensorView g_out;                     ///< [B, H_v, S, D_v], unit stride along the last axis
  const TensorView* g_state = nullptr;  ///< C, of `state`; null: 0
  TensorView kept;                      ///< as the forward kernel left it
  TensorView dq, dk, dv;                ///< contiguous, written whole
  const TensorView* dg = nullptr;       ///< C, as g; null without g
  const TensorView* dbeta = nullptr;    ///< C, as beta; null without beta
  TensorView dinitial;                  ///< C, [N, H_v, D, D_v]
};

inline void add_operands(KernelCall& call, const DeltaGradients& x) {
  for (const TensorView* operand : {&x.g_out, &x.kept, &x.dq, &x.dk, &x.dv, &x.dinitial}) {
    add_operands(call, *operand);
  }
  for (const TensorView* operand : {x.g_state, x.dg, x.dbeta}) add_operands(call, operand);
}

/// The gradients of sum(g_out . out) + sum(g_state . state). With dS the gradient of the state
/// after a chunk, chunks from the last to the first, e = a(0, last] and f[t] = a(t, last]:
///
///     du = scale P' g_out + (f k) dS,    dr = N' du,    dv = dy = beta dr
///     gradient of the state before it: e dS + scale (b q)' g_out - (b k)' dy
///     dP = scale g_out u',    dA = -dy u',    dbeta = dr . y - rowsum(dr u' A)
///
/// Each product with a decay gives its gradient to the two factors, and to g: x . dx at the token
/// where the decay ends, minus that where it begins, summed from the last token to the first. No
/// float atomics: the same bits every time.
extern SASH_API Kernel<void(KernelContext&, const DeltaInputs&, const DeltaGradients&)>
    delta_rule_backward;

}  // namespace sash::kernels
