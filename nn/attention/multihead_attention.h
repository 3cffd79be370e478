#pragma once

#include <array>
#include <optional>
#include <string>

#include "../../ops/attention/attention.h"
#include "../layers/linear.h"
#include "attention_kind.h"
#include "key_value_cache.h"

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
};

/// Multi-head scaled dot-product attention (Vaswani et al., 2017), batch first, with any
/// `AttentionMask`: the module's, combined by `&` with that of a call, or any other
/// `AttentionKind`.
///
/// Parameters, as PyTorch's: `in_proj_weight` [(heads + 2 kv_heads) head_dim, dim] (queries, keys,
/// values; Xavier uniform at first), `in_proj_bias` (zeros), `out_proj.weight` [dim, dim],
/// `out_proj.bias` (zeros); with relative positions, `relative_bias` [heads, 2 R + 1] (zeros); with
/// sink logits, `sink_logits` [heads] (zeros).
class SASH_API MultiheadAttention : public Module {
 public:
  /// The module's mask is `options.attention` & `mask`. `ValueError` unless dim is a
  /// positive multiple of heads, heads one of kv_heads, dropout in [0, 1], softcap and
  /// relative_positions not negative, and `options.attention` an `AttentionKind` that can do what
  /// the other options and `mask` ask.
  MultiheadAttention(int64_t dim, int64_t heads, const MultiheadAttentionOptions& options = {},
                     const AttentionMask& mask = {});

  /// Self-attention of x [B, S, dim] under the module's mask.
  Tensor forward(const Tensor& x) override;
  /// Self-attention of x [B, S, dim]. `ShapeError` unless x is that.
  virtual Tensor forward(const Tensor& x, const AttentionMask& mask);
  /// q [B, S_q, dim] attends to k and v [B, S_k, dim], giving [B, S_q, dim]. `ShapeError` unless
  /// the shapes are those.
  virtual Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v,
                         const AttentionMask& mask = {});
  /// Self-attention of the tokens x [B, S, dim] that follow those in `cache` to themselves and to
  /// these, under the cache's mask; appends them to the cache. For evaluation without recording:
  /// `AutogradError` if keys would require grad.
  virtual Tensor forward(const Tensor& x, KeyValueCache& cache);
  template <class... Args>
  Tensor operator()(Args&&... args) {
    return named_errors([&] { return forward(std::forward<Args>(args)...); });
  }
  std::string describe() const override;

  /// An empty cache for self-attention under `mask` and the module's mask. `ValueError` if their
  /// combination has no `causal_reach`, or the module's kind of attention is no mask.
  KeyValueCache new_cache(const AttentionMask& mask = AttentionMask::causal()) const {
    kind_.check_caches();
    return KeyValueCache(mask_ & mask);
  }

  int64_t dim() const { return dim_; }
  int64_t heads() const { return heads_; }
  int64_t kv_heads() const { return kv_heads_; }
  int64_t head_dim() const { return dim_ / heads_; }
  /// How the heads attend; if that is a mask, it is part of `mask()`.
  const AttentionKind& kind() const { return kind_; }
  /// The module's mask.
  const AttentionMask& mask() const { return mask_; }

 protected:
  /// `ShapeError` unless x is [B, S, dim]; `what` names it.
  void check_input(const char* what, const Tensor& x) const;
  /// Queries [B, heads, S, D], keys and values [B, kv_heads, S, D] of x [B, S, dim].
  std::array<Tensor, 3> project(const Tensor& x) const;
  /// q [B, heads, S_q, D], k and v [B, kv_heads, S_k, D] attend under `mask` alone, with the
  /// module's dropout, softcap and biases; the heads' results concatenated [B, S_q, dim].
  Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionMask& mask);

 private:
  int64_t projected_heads() const { return heads_ + 2 * kv_heads_; }
  Tensor project_heads(const Tensor& x, int64_t first, int64_t count) const;
  AttentionOptions attention_options(const AttentionMask& mask, Device device);

  int64_t dim_;
  int64_t heads_;
  int64_t kv_heads_;
  double dropout_;
  double softcap_;
  AttentionKind kind_;
  AttentionMask mask_;
  Tensor alibi_slopes_;  // constants, hence no buffer

 public:
  Tensor in_proj_weight;
  Tensor in_proj_bias;   ///< undefined without one
  Tensor relative_bias;  ///< undefined without one
  Tensor sink_logits;    ///< undefined without them
  Linear& out_proj;
};

}  // namespace sash::nn
