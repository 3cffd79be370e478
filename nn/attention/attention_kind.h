#pragma once

#include <memory>
#include <string>

#include "../../ops/attention/exact/attention.h"

namespace sash::nn {

class KeyValueCache;

/// The numbers of `MobaAttention`.
struct SASH_API MobaOptions {
  int64_t block = 512;  ///< keys of a block
  int64_t top_k = 3;    ///< blocks that a query sees, its own among them

  /// "moba:512,top_k=3".
  std::string to_string() const;
};

/// The numbers of `NativeSparseAttention`.
struct SASH_API NativeSparseOptions {
  int64_t block = 64;      ///< keys that one pooled key stands for
  int64_t top_k = 16;      ///< blocks that are selected for a query, the forced ones among them
  int64_t window = 512;    ///< keys of the window, the query's own among them
  int64_t first = 1;       ///< forced besides the own block: the first blocks,
  int64_t neighbours = 1;  ///< and those before the own block
  bool learned = false;    ///< keys and values are pooled with learnt weights, not as means

  /// "nsa:64,top_k=16,window=512,first=1,neighbours=1".
  std::string to_string() const;
};

/// The numbers of `GatedDeltaNet`.
struct SASH_API GatedDeltaNetOptions {
  int64_t value_heads = 0;  ///< of values, gates and betas; 0 means heads
  int64_t head_dim = 0;     ///< features of a head of queries and keys; 0 means dim / heads
  int64_t v_head_dim = 0;   ///< of a head of values; 0 means that of queries and keys
  int64_t kernel = 4;       ///< tokens that the convolution before the heads sees
  double eps = 1e-6;        ///< of the norm of the results
  bool kimi = false;        ///< Kimi Delta Attention: a decay for each feature of the keys

  /// "gated_delta:4,head_dim=64", or "kda:4,head_dim=64" if `kimi`. Numbers that are 0 are left
  /// out.
  std::string to_string() const;
};

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
///     moba:BLOCK,top_k=K               `MobaAttention`
///     nsa:BLOCK,top_k=K,window=W       `NativeSparseAttention`
///     gated_delta:KERNEL, kda:KERNEL   `GatedDeltaNet` instead of attention; kda: with `kimi`
///
/// The clustered kinds take bits=N, iterations=N and hash_bias=0; without numbers, C is 100, K 32,
/// bits 32 and iterations 10. moba is moba:512,top_k=3, nsa is nsa:64,top_k=16,window=512 and also
/// takes first=N, neighbours=N and learned=1, see `NativeSparseOptions`. gated_delta and kda have
/// KERNEL 4 and also take value_heads=N, head_dim=N and v_head_dim=N. The names of
/// fast-transformers mean the same: causal-linear, improved-clustered, exact-topk, and topk for
/// top_k.
///
/// | kind | masks of a call | dropout |
/// | --- | --- | --- |
/// | masks | all | of the weights |
/// | `linear` | `key_lengths` | none: it has no weights |
/// | `causal_linear` | `causal` (it always is), `key_lengths` | none |
/// | clustered kinds | `key_lengths`, of the queries too where S_q = S_k | of the weights |
/// | `top_k` | all | of the weights |
/// | `moba` | `causal` (it always is), `key_lengths` | of the weights |
/// | `nsa` | `causal` (it always is) | of the weights |
/// | `gated_delta`, `kda` | `causal` (they always are) | none: they have no weights |
///
/// All but masks refuse a softcap, biases and sink logits, and linear, clustered and top_k kinds
/// key-value caches. `nsa`, `gated_delta` and `kda` have parameters, so only modules run them.
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
  /// Whether key-value caches can serve it.
  bool has_caches() const;
  /// Its numbers if it is nsa, else null.
  const NativeSparseOptions* native_sparse() const;
  /// Its numbers if it is gated_delta or kda, else null.
  const GatedDeltaNetOptions* gated_delta() const;
  /// Whether later tokens can be hidden by a causal mask, as language models need.
  bool can_be_causal() const;
  /// `ValueError` of `op` naming the kind unless they can.
  void check_causal(const std::string& op) const;
  /// "improved_clustered:100,top_k=32,bits=32,iterations=10".
  std::string to_string() const;

  /// `ValueError` naming the kind if it cannot do what the options ask.
  void check(const AttentionOptions& options) const;
  /// `ValueError` naming the kind if key-value caches cannot serve it.
  void check_caches() const;
  /// Attention of q [B, H, S_q, D] to k [B, H_kv, S_k, D] and v [B, H_kv, S_k, D_v] under
  /// `options.mask`. A mask kind's own mask is not added. `cache` holds k and v, if they come from
  /// one, and keeps what the kind made of them. `NotImplemented` for kinds with parameters.
  Tensor operator()(const Tensor& q, const Tensor& k, const Tensor& v,
                    const AttentionOptions& options, KeyValueCache* cache = nullptr) const;

 private:
  AttentionMask mask_;
  std::shared_ptr<const Method> method_{};
};

}  // namespace sash::nn
