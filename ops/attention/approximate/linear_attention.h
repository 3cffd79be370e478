#pragma once

#include "../../../tensor/tensor.h"

namespace sash {

struct LinearAttentionOptions {
  bool causal = false;   ///< query i sees the keys j <= i; needs S_q = S_k
  Tensor key_lengths{};  ///< int32 [B]: keys from key_lengths[b] on are hidden, whatever they hold
  double eps = 1e-6;     ///< added to the normaliser
};

/// Linear attention (Katharopoulos et al., "Transformers are RNNs", ICML 2020): the softmax is
/// replaced by a product of features phi(x) = elu(x) + 1,
///
///     o[i] = sum_j (phi(q[i]) . phi(k[j])) v[j] / (sum_j phi(q[i]) . phi(k[j]) + eps)
///
/// over the visible keys j. No scale is applied to q.
///
/// q [B, H, S_q, D], k [B, H_kv, S_k, D], v [B, H_kv, S_k, D_v] give o [B, H, S_q, D_v]; H is a
/// multiple of H_kv, and query head h reads key and value head floor(h H_kv / H). Floating dtypes;
/// halves are summed in float32. Work is O(S D D_v) and memory linear in S, in both passes. A query
/// that sees no key gets zeros and a zero gradient.
///
/// Throws `ShapeError`, `DTypeError`, `DeviceError`, and `ValueError` unless eps > 0 and the
/// lengths are in [0, S_k].
SASH_API Tensor linear_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                 const LinearAttentionOptions& options = {});

/// The sums of causal linear attention over the tokens so far; their size does not depend on how
/// many there were. Undefined before the first token; float64 for float64, else float32.
struct LinearAttentionState {
  Tensor s{};  ///< [B, H_kv, D, D_v]: the sum of phi(k[j]) v[j]'
  Tensor z{};  ///< [B, H_kv, D]: the sum of phi(k[j])
};

/// The recurrent form of causal linear attention, for decoding: the next n tokens, q [B, H, n, D],
/// k [B, H_kv, n, D] and v [B, H_kv, n, D_v], give o [B, H, n, D_v], and are added to `state`.
/// Equal to `linear_attention` with `causal` over all tokens at once, up to rounding. From plain
/// ops, so gradients flow through the state; use `NoGradGuard` to decode.
///
/// Throws as `linear_attention` does, and `ShapeError`, `DTypeError` or `DeviceError` if `state`
/// does not fit q, k and v.
SASH_API Tensor linear_attention_step(const Tensor& q, const Tensor& k, const Tensor& v,
                                      LinearAttentionState& state, double eps = 1e-6);

namespace composite {
/// `linear_attention` from plain ops, in chunks: runs on backends without the fused kernels, gives
/// second derivatives, and is the tests' reference.
SASH_API Tensor linear_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                 const LinearAttentionOptions& options);
}  // namespace composite

}  // namespace sash
