#pragma once

#include "../../core/backend/kernel.h"
#include "../../core/backend/tensor_view.h"
#include "../../core/philox.h"
#include "attention_dropout.h"
#include "block_map.h"

/// Attention o = dropout(softmax(s where visible)) v with the scores
///
///     s[i, j] = softcap tanh(scale q[i] . k[j] / softcap)    (scale q[i] . k[j] without a softcap)
///             + bias[i, j] + relative_bias[clamp(j - p, -R, R) + R] - slope abs(p - j),
///
/// where p = i + S_k - S_q is the position of query i among the keys. The S_q x S_k matrix is never
/// held. q [B, H, S_q, D], k [B, H_kv, S_k, D], v [B, H_kv, S_k, D_v], one floating dtype, unit
/// stride along the last axis, other strides free; query head h reads key head h H_kv / H.
/// C below is the type of the arithmetic: float64 for float64, else float32.
namespace sash::kernels {

/// An element of `AttentionParams::bounds`: the keys [first, past).
struct KeyRange {
  int32_t first, past;
};

struct AttentionParams {
  double scale = 1;
  double softcap = 0;  ///< 0: none
  /// The visible scores, in blocks of the height that `attention_block_rows` gave for this call.
  BlockMap map;
  /// A `KeyRange` per query, int32 [B or 1, H or 1, S_q, 2], contiguous, with 0 <= first < past <=
  /// S_k, or {S_k, 0} if the query sees no key. Narrows the map. Null: no bounds.
  const TensorView* bounds = nullptr;
  const TensorView* bias = nullptr;           ///< [B, H, S_q, S_k] by strides, dtype of q, or null
  const TensorView* relative_bias = nullptr;  ///< C [H, 2 R + 1] by strides, or null
  const TensorView* slopes = nullptr;         ///< ALiBi: C [H] by strides, or null
  double dropout = 0;                         ///< see `AttentionDropout`; its rows are [B, H, S_q]
  PhiloxState philox;
  /// The elements that dropout keeps: the forward kernel writes them, the backward kernel reads
  /// them. uint8 [the result of `attention_kept_bytes`]. Null: both kernels draw them.
  const TensorView* kept = nullptr;
};

struct AttentionInputs {
  TensorView q, k, v;
};

inline void add_operands(KernelCall& call, const AttentionInputs& x) {
  for (const TensorView* operand : {&x.q, &x.k, &x.v}) add_operands(call, *operand);
}
/// The part of all scores that lies in blocks of the map.
inline void add_operands(KernelCall& call, const AttentionParams& x) {
  const auto all =
      static_cast<double>(x.map.query_blocks * x.map.key_blocks * x.map.batches * x.map.heads);
  if (all > 0) call.part = static_cast<double>(x.map.by_query.entries) / all;
  add_operands(call, x.bias);
}

enum class AttentionPass { forward, backward };

/// Sets `query_rows`, in [1, 256], to the block height of the map that this backend's
/// `attention_forward` or `attention_backward` reads for `inputs`.
extern SASH_API Kernel<void(KernelContext&, const AttentionInputs& inputs, AttentionPass pass,
                            int64_t& query_rows)>
    attention_block_rows;

/// out [B, H, S_q, D_v] (dtype of q, unit stride along the last axis; the other strides are
/// multiples of D_v) and lse [B, H, S_q] (C, contiguous) = log of the sum of exp(s) over the
/// visible keys. A query that sees no key gets out = 0 and lse = +inf.
extern SASH_API Kernel<void(KernelContext&, const AttentionInputs&, const AttentionParams&,
                            const TensorView& out, const TensorView& lse)>
    attention_forward;

/// Sets `bytes` to the size of `AttentionParams::kept` for a call; 0 if the call's kernels do not
/// use it. A backend that never uses it has no kernel here.
extern SASH_API
    Kernel<void(KernelContext&, const AttentionInputs&, const AttentionParams&, int64_t& bytes)>
        attention_kept_bytes;

/// The tensors that the backward kernel reads besides the inputs, and those that it writes, every
/// element of them. dq, dk and dv have strides as `out` has; the others are contiguous.
struct AttentionGradients {
  TensorView g;             ///< [B, H, S_q, D_v], unit stride along the last axis
  const TensorView* g_lse;  ///< C [B, H, S_q], contiguous, or null: the cotangent of lse
  TensorView out, lse;      ///< as the forward kernel left them
  TensorView dq, dk, dv;
  const TensorView* dbias;      ///< C [B, H, S_q, S_k], zeros before the call; null if not wanted
  const TensorView* drelative;  ///< C [B, H, 2 R + 1]; null if not wanted
};

inline void add_operands(KernelCall& call, const AttentionGradients& x) {
  for (const TensorView* operand : {&x.g, &x.out, &x.lse, &x.dq, &x.dk, &x.dv}) {
    add_operands(call, *operand);
  }
  add_operands(call, x.dbias);
}

/// The gradients of sum(g . out) + sum(g_lse . lse). With P = exp(s - lse), dropout factors M and
/// D = rowsum(g . out) - g_lse: dv = (M P)' g; dS = P (M (g v') - D), which is dbias, and whose
/// sums along diagonals are drelative; E = dS times the slope of the softcap, 1 - tanh^2; dq =
/// scale E k and dk = scale E' q. No float atomics: the same bits every time.
extern SASH_API Kernel<void(KernelContext&, const AttentionInputs&, const AttentionParams&,
                            const AttentionGradients&)>
    attention_backward;

/// The weights that dropout with probability p keeps: boolean [B, H, S_q, S_k], contiguous.
extern SASH_API Kernel<void(KernelContext&, const TensorView& kept, PhiloxState, double p)>
    attention_dropout;

// Masks that are data: bounds made on the device.

struct RowBoundsParams {
  int64_t queries = 0, keys = 0;
  const TensorView* lengths = nullptr;     ///< int32 [B], contiguous: [0, lengths[b])
  const TensorView* cu_seqlens = nullptr;  ///< int32 [n + 1], contiguous: that of i's sequence
  const TensorView* first = nullptr;       ///< int32 [B or 1, H or 1, S_q] by strides: [first, ...
  const TensorView* past = nullptr;        ///< int32, the same: ..., past)
  const char* op = "attention";            ///< what errors name
};

/// Writes `AttentionParams::bounds`: the intersection of the given ranges and, with `narrow`, of
/// the ranges that `bounds` holds already.
///
/// `ValueError` for a length outside [0, keys], cu_seqlens that do not start at 0, decrease, or do
/// not end at queries (= keys), or a range outside [0, keys]. CUDA clamps them, and throws at the
/// next synchronisation.
extern SASH_API
    Kernel<void(KernelContext&, const RowBoundsParams&, bool narrow, const TensorView& bounds)>
        row_bounds;

}  // namespace sash::kernels
