#pragma once

#include <optional>

#include "../../../core/philox.h"
#include "../../../tensor/tensor.h"
#include "../mask/attention_mask.h"

namespace sash {

struct AttentionOptions {
  AttentionMask mask{};           ///< which keys a query may see; all by default
  std::optional<double> scale{};  ///< factor of the scores; 1 / sqrt(D) by default
  double softcap = 0;             ///< c > 0: scores become c tanh(s / c), before all that follows
  Tensor bias{};  ///< added to the scores; dtype of q, broadcasts to [B, H, S_q, S_k]
  Tensor
      relative_bias{};  ///< [H or 1, 2 R + 1], dtype of q: element clamp(j - p, -R, R) + R is added
  Tensor alibi_slopes{};  ///< float32 [H]: slope abs(p - j) is subtracted; not differentiated
  /// Probability with which an attention weight is dropped, rounded to a multiple of 1 / 4096.
  double dropout = 0;
  /// Learnable attention sinks, floating [H]: exp(sink_logits[h]) joins the denominator of the
  /// softmax. `AttentionMask::sinks(n)` differs: it shows the first n keys to all queries.
  Tensor sink_logits{};
};

/// Scaled dot-product attention (Vaswani et al., "Attention is all you need", 2017):
///
///     o = dropout(softmax(s where visible)) v,    s = softcap(scale q k') + biases
///
/// q [B, H, S_q, D], k [B, H_kv, S_k, D], v [B, H_kv, S_k, D_v] give o [B, H, S_q, D_v]; H is a
/// multiple of H_kv, and query head h reads key and value head floor(h H_kv / H). Floating
/// dtypes; on CUDA, D and D_v are at most 512. Query i stands at position p = i + S_k - S_q among
/// the keys.
///
/// Work is proportional to the visible pairs (in blocks), memory to S_q + S_k (Dao et al.,
/// "FlashAttention", 2022). A query that sees no key gets zeros and a zero gradient. The weight of
/// [b, h, i, j] is dropped or kept by its place in [B, H, S_q, S_k] alone. Gradients
/// reach q, k, v, `bias` (its gradient takes S_q x S_k memory) and `relative_bias` (Shaw et al.,
/// "Self-attention with relative position representations", 2018; linear memory). ALiBi: Press et
/// al., "Train short, test long", ICLR 2022. They reach `sink_logits` (OpenAI, "gpt-oss model
/// card", 2025) too, with which o = dropout(exp(s) / (exp(sink) + sum exp(s))) v = sigmoid(lse -
/// sink) times o without them.
///
/// Throws `ShapeError` if the tensors or the mask do not fit, `DTypeError`, `DeviceError`, and
/// `ValueError` unless 0 <= dropout <= 1, softcap >= 0 and the scale is finite, in float32 unless q
/// is float64.
SASH_API Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v,
                          const AttentionOptions& options = {});

/// The result of attention and the log-sum-exp.
struct AttentionWithLse {
  Tensor out;  ///< [B, H, S_q, D_v]
  /// [B, H, S_q]: log of the sum of exp(s) over the visible keys, +inf where none is. With sink
  /// logits it counts the sink: log(exp(sink) + sum exp(s)), the sink's logit where no key is
  /// visible.
  Tensor lse;
};

/// `attention` with the log-sum-exp of the scores (float64 for float64, else float32), which is
/// differentiable. With it, results over parts of the keys can be merged; only one part may have
/// the sink logits.
SASH_API AttentionWithLse attention_with_lse(const Tensor& q, const Tensor& k, const Tensor& v,
                                             const AttentionOptions& options = {});

/// The weights dropout(softmax(s where visible)) [B, H, S_q, S_k], for inspecting small cases.
/// Differentiable, from plain ops.
SASH_API Tensor attention_probabilities(const Tensor& q, const Tensor& k,
                                        const AttentionOptions& options = {});

namespace composite {
/// `attention_with_lse` from plain ops, with the S_q x S_k matrix: runs on backends without the
/// fused kernels, gives second derivatives, and is the tests' reference. `philox` is the start of
/// the dropout mask.
SASH_API AttentionWithLse attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                    const AttentionOptions& options, PhiloxState philox);
}  // namespace composite

}  // namespace sash
