#pragma once

#include <memory>
#include <string>

#include "../../ops/attention/exact/attention.h"

namespace sash::nn {

/// How a module's heads attend, by name:
///
///     full                             softmax attention
///     local:C                          the same within C keys, as `AttentionMask::parse`
///     any other mask expression        the same under that mask: "causal_window:256 | sinks:4"
///     linear                           `linear_attention`
///     causal_linear                    the same with `causal`
///     clustered:C                      `clustered_attention` with C clusters
///     improved_clustered:C,top_k=K     `improved_clustered_attention`; also "clustered:C,top_k=K"
///     top_k:K                          `top_k_attention`
///
/// The clustered kinds take bits=N, iterations=N and hash_bias=0; without numbers, C is 100, K 32,
/// bits 32 and iterations 10. The names of fast-transformers mean the same: causal-linear,
/// improved-clustered, exact-topk, and topk for top_k.
///
/// | kind | masks of a call | dropout |
/// | --- | --- | --- |
/// | masks | all | of the weights |
/// | `linear` | `key_lengths` | none: it has no weights |
/// | `causal_linear` | `causal` (it always is), `key_lengths` | none |
/// | clustered kinds | `key_lengths`, of the queries too where S_q = S_k | of the weights |
/// | `top_k` | all | of the weights |
///
/// All but masks refuse a softcap, biases, sink logits and key-value caches.
class SASH_API AttentionKind {
 public:
  /// The implementation of a kind other than a mask; for attention_kind.cpp.
  class Method;

  /// Softmax attention under a mask.
  AttentionKind(const AttentionMask& mask = {}) : mask_(mask) {}
  /// From text. `ValueError` naming it.
  static AttentionKind parse(const std::string& text);

  /// Whether this is softmax attention under `mask()`.
  bool is_mask() const { return !method_; }
  /// The mask, if it is one; other kinds have a mask that shows everything.
  const AttentionMask& mask() const { return mask_; }
  /// Whether later tokens can be hidden by a causal mask, as language models need.
  bool can_be_causal() const;
  /// "improved_clustered:100,top_k=32,bits=32,iterations=10".
  std::string to_string() const;

  /// `ValueError` naming the kind if it cannot do what the options ask.
  void check(const AttentionOptions& options) const;
  /// `ValueError` naming the kind if key-value caches cannot serve it.
  void check_caches() const;
  /// Attention of q [B, H, S_q, D] to k [B, H_kv, S_k, D] and v [B, H_kv, S_k, D_v] under
  /// `options.mask`. A mask kind's own mask is not added.
  Tensor operator()(const Tensor& q, const Tensor& k, const Tensor& v,
                    const AttentionOptions& options) const;

 private:
  AttentionMask mask_;
  std::shared_ptr<const Method> method_{};
};

}  // namespace sash::nn
