#pragma once

#include <array>
#include <optional>
#include <string>

#include "../../ops/attention/exact/attention.h"
#include "../layers/linear.h"
#include "attention_kind.h"
#include "gated_delta_net.h"
#include "key_value_cache.h"
#include "native_sparse.h"
#include "sequence_parallel.h"

namespace sash::nn {

struct MultiheadAttentionOptions {
  double dropout = 0;  ///< of attention probabilities, while training
  bool bias = true;
  /// How the heads attend, in the syntax of `AttentionKind::parse`: a mask, "window:256,0", or
  /// another kind, "linear".
  std::string attention = "dense";
  int64_t kv_heads = 0;  ///< of keys and values (Ainslie et al., "GQA", 2023); 0 means heads
  double softcap = 0;    ///< c > 0 bounds the scores: c tanh(s / c)
  bool alibi = false;    ///< subtracts 2^(-8 h / heads) abs(p - j) from the scores of head h >= 1
  /// R >= 0 adds a learnt bias for each head and distance j - p, which is clamped to [-R, R].
  std::optional<int64_t> relative_positions{};
  /// Adds a learnt logit per head to the softmax's denominator (`AttentionOptions::sink_logits`);
  /// not the mask "sinks:N".
  bool sink_logits = false;
  int64_t kdim = 0;  ///< features of the inputs k and v; 0 means those of q, dim
  int64_t vdim = 0;
  int64_t head_dim = 0;    ///< features of a head of queries and keys; 0 means dim / heads
  int64_t v_head_dim = 0;  ///< of a head of values; 0 means that of queries and keys
  /// Which projections there are. Inputs without one hold the heads side by side, heads (kv_heads)
  /// times the features of a head; without the last, so does the result.
  bool q_proj = true;
  bool k_proj = true;
  bool v_proj = true;
  bool out_proj = true;
};

/// The result of attention, and the weights that it was computed with.
struct AttentionWithWeights {
  Tensor out;      ///< [B, S_q, dim]
  Tensor weights;  ///< [B, S_q, S_k], the mean over heads, or [B, H, S_q, S_k]
};

/// Multi-head scaled dot-product attention (Vaswani et al., 2017), batch first, with any
/// `AttentionMask`: the module's, combined by `&` with that of a call, or any other
/// `AttentionKind`.
///
/// Parameters, as PyTorch's: `in_proj_weight` [(heads + 2 kv_heads) head_dim, dim] (queries, keys,
/// values; Xavier uniform at first), `in_proj_bias` (zeros), `out_proj.weight` [dim, dim],
/// `out_proj.bias` (zeros); with relative positions, `relative_bias` [heads, 2 R + 1] (zeros); with
/// sink logits, `sink_logits` [heads] (zeros).
///
/// Where the three weights cannot be packed, because inputs or heads differ in width or a
/// projection is left out, they are, again as PyTorch's, `q_proj_weight` [heads head_dim, dim],
/// `k_proj_weight` [kv_heads head_dim, kdim] and `v_proj_weight` [kv_heads v_head_dim, vdim];
/// `in_proj_bias` holds the biases of those that there are, and `out_proj.weight` is [dim, heads
/// v_head_dim].
class SASH_API MultiheadAttention : public ModuleOf<MultiheadAttention>, public SplitAttention {
 public:
  using Options = MultiheadAttentionOptions;

  /// The module's mask is `options.attention` & `mask`. `ValueError` unless dim is a
  /// positive multiple of heads (or there is a head_dim), heads one of kv_heads, dropout in [0, 1],
  /// softcap, relative_positions and widths not negative, and `options.attention` an
  /// `AttentionKind` that can do what the other options and `mask` ask.
  MultiheadAttention(int64_t dim, int64_t heads, const MultiheadAttentionOptions& options = {},
                     const AttentionMask& mask = {});

  /// Self-attention of x [B, S, dim] under the module's mask.
  Tensor forward(const Tensor& x) override;
  /// Self-attention of x [B, S, dim]. `ShapeError` unless x is that.
  virtual Tensor forward(const Tensor& x, const AttentionMask& mask);
  /// q [B, S_q, dim] attends to k [B, S_k, kdim] and v [B, S_k, vdim], giving [B, S_q, dim].
  /// `ShapeError` unless the shapes are those.
  virtual Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v,
                         const AttentionMask& mask = {});
  /// The same, with the weights, after dropout, as PyTorch's `need_weights`: from plain ops, with
  /// S_q x S_k memory. Padding is a mask: `AttentionMask::key_lengths(lengths)`, or a bool tensor
  /// [B, 1, 1, S_k] of what may be seen. `NotImplemented` for kinds of attention other than masks.
  virtual AttentionWithWeights forward_with_weights(const Tensor& q, const Tensor& k,
                                                    const Tensor& v, const AttentionMask& mask = {},
                                                    bool average_heads = true);
  /// Self-attention of the tokens x [B, S, dim] that follow those in `cache` to themselves and to
  /// these, under the cache's mask; appends them to the cache. For evaluation without recording:
  /// `AutogradError` if keys would require grad.
  virtual Tensor forward(const Tensor& x, KeyValueCache& cache);
  std::string describe() const override;

  /// An empty cache for self-attention under `mask` and the module's mask. `ValueError` if their
  /// combination has no `causal_reach`, or the module's kind of attention has no caches.
  KeyValueCache new_cache(const AttentionMask& mask = AttentionMask::causal()) const {
    kind_.check_caches();
    return KeyValueCache(mask_ & mask);
  }

  int64_t dim() const { return dim_; }
  int64_t heads() const { return heads_; }
  int64_t kv_heads() const { return kv_heads_; }
  int64_t head_dim() const { return head_dim_; }
  int64_t v_head_dim() const { return v_head_dim_; }
  /// How the heads attend; if that is a mask, it is part of `mask()`.
  const AttentionKind& kind() const { return kind_; }
  /// The module's mask.
  const AttentionMask& mask() const { return mask_; }
  void set_sequence(const SequenceParallel& sequence) override;

 protected:
  /// `ShapeError` unless x is [B, S, dim]; `what` names it.
  void check_input(const char* what, const Tensor& x) const { check_input(what, x, dim_); }
  /// Queries [B, heads, S, D], keys and values [B, kv_heads, S, D] of x [B, S, dim]. `ShapeError`
  /// if x cannot be the input of all three projections.
  std::array<Tensor, 3> project(const Tensor& x) const;
  /// q [B, heads, S_q, D], k and v [B, kv_heads, S_k, D] attend under `mask` alone, with the
  /// module's dropout, softcap and biases; the heads' results concatenated [B, S_q, dim].
  Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionMask& mask);

 private:
  enum Part { kQueries, kKeys, kValues };
  struct Projection {
    int64_t in, out;  // features
    bool present;
  };

  void check_input(const char* what, const Tensor& x, int64_t width) const;
  void check_inputs(const Tensor& q, const Tensor& k, const Tensor& v) const;
  Projection projection(Part part) const;
  // Whether in_proj_weight has all three weights.
  bool packed() const;
  void make_input_projections(bool bias);
  Tensor project_heads(const Tensor& x, Part part) const;
  AttentionOptions attention_options(const AttentionMask& mask, Device device);
  // Heads of the inputs x, whose k and v may come from `cache`, if the kind is no mask.
  Tensor attend_by_kind(const Tensor& x, const std::array<Tensor, 3>& qkv,
                        const AttentionOptions& options, KeyValueCache* cache = nullptr);

  int64_t dim_;
  int64_t heads_;
  int64_t kv_heads_;
  int64_t head_dim_;
  int64_t v_head_dim_;
  int64_t kdim_;
  int64_t vdim_;
  std::array<bool, 3> present_;
  double dropout_;
  double softcap_;
  AttentionKind kind_;
  AttentionMask mask_;
  Tensor alibi_slopes_;  // constants, hence no buffer

 public:
  Tensor in_proj_weight;  ///< undefined if the weights are not packed; else the next three are
  Tensor q_proj_weight;
  Tensor k_proj_weight;
  Tensor v_proj_weight;
  Tensor in_proj_bias;                     ///< undefined without one
  Tensor relative_bias;                    ///< undefined without one
  Tensor sink_logits;                      ///< undefined without them
  Linear& out_proj;                        ///< the identity if it is left out
  NativeSparseBranches* sparse = nullptr;  ///< of `NativeSparseAttention`, else null
  /// Of the kinds gated_delta and kda, else null. The module has no projections of its own then.
  GatedDeltaNet* delta = nullptr;
};

}  // namespace sash::nn
