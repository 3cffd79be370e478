#pragma once

#include <array>

#include "../../ops/norm/rms_norm.h"
#include "../attention/key_value_cache.h"
#include "../layers/linear.h"
#include "../layers/rms_norm.h"
#include "decoder_config.h"

/// The parts of a `Decoder` or `Encoder`, made from a `DecoderConfig`, which names their
/// parameters.
namespace sash::nn {

/// A LayerNorm or RMSNorm.
class SASH_API DecoderNorm : public Module {
 public:
  explicit DecoderNorm(const DecoderConfig& config);

  Tensor forward(const Tensor& x) override;
  /// The sum of residual and dropout(branch), and its norm, in one pass over memory where a kernel
  /// does both.
  SumAndNorm add(const Tensor& branch, const Tensor& residual, double dropout);
  std::string describe() const override;
  bool is_rms() const { return kind_ != NormKind::layer_norm; }
  RmsNormOptions rms_options() const {
    return {.eps = eps_, .unit_offset = kind_ == NormKind::rms_norm_unit_offset};
  }

 private:
  NormKind kind_;
  double eps_;

 public:
  Tensor weight;
  Tensor bias;  ///< undefined without one
};

/// What the tokens of one call of a layer attend to.
struct AttentionContext {
  AttentionMask mask{};   ///< ignored with caches, which have their own
  RotaryAngles angles{};  ///< of the tokens' positions; undefined: no rotation
  RotaryLayout layout = RotaryLayout::half_split;
  /// Of the tokens before these, which the call extends: none, one of all rows, or one for each.
  std::vector<KeyValueCache*> caches{};
  /// One token a row by `attention_step`: int64, the position of each cache's, for which it has
  /// room already. The angles are then those of the positions from 0 on.
  Tensor positions{};
};

/// What a layer's cross attention reads of an encoder's states, and which of it.
struct CrossKeys {
  Tensor k, v;  ///< [B, kv_heads, S, head_dim]
  AttentionMask mask{};
};

/// Attention with projections, norms of q and k, and rotation.
///
/// The fused kernels take scale, softcap and mask. Sink logits are a factor of their result, from
/// its log-sum-exp; norms of q and k are ops before them.
class SASH_API DecoderAttention : public Module {
 public:
  /// `cross`: keys and values are an encoder's, and nothing is rotated.
  explicit DecoderAttention(const DecoderConfig& config, bool cross = false);

  /// Self-attention of x [B, S, dim], giving [B, S, dim].
  Tensor forward(const Tensor& x, const AttentionContext& context);
  /// Cross attention of x [B, S, dim].
  Tensor forward(const Tensor& x, const CrossKeys& keys);
  using Module::forward;
  /// x + forward(norm(x)) of one token a row, each product with what stands around it in one kernel
  /// (`linear_step`).
  Tensor step(const Tensor& x, const DecoderNorm& norm, const AttentionContext& context) const;
  /// Whether it may take the place of `forward`.
  bool can_step() const;
  template <class Context>
  Tensor operator()(const Tensor& x, const Context& context) {
    return call([&] { return forward(x, context); }, x);
  }
  /// Of an encoder's states [B, S, dim], for cross attention.
  CrossKeys cross_keys(const Tensor& states, const AttentionMask& mask = {});
  std::string describe() const override;

 private:
  std::array<Tensor, 3> project(const Tensor& x, const AttentionContext& context);
  std::array<Tensor, 3> split(Tensor packed, const RotaryAngles& angles, RotaryLayout layout) const;
  Tensor normed(const Tensor& heads, RMSNorm* norm) const;
  Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionMask& mask) const;
  Tensor attend_step(const std::array<Tensor, 3>& qkv, const AttentionContext& context) const;
  Tensor attend_cached(const std::array<Tensor, 3>& qkv,
                       const std::vector<KeyValueCache*>& caches) const;

  int64_t dim_, heads_, kv_heads_, head_dim_;
  double scale_, softcap_, dropout_;
  QKNorm qk_norm_;

 public:
  Linear* qkv_proj = nullptr;  ///< of packed self-attention; the others are null where unused
  Linear* q_proj = nullptr;
  Linear* kv_proj = nullptr;  ///< of packed cross attention
  Linear* k_proj = nullptr;
  Linear* v_proj = nullptr;
  Linear* o_proj = nullptr;
  RMSNorm* q_norm = nullptr;
  RMSNorm* k_norm = nullptr;
  Tensor sink_logits;
};

/// down_proj(activation(up_proj(x))), or down_proj(glu(gate_up_proj(x))).
class SASH_API DecoderMlp : public Module {
 public:
  explicit DecoderMlp(const DecoderConfig& config);

  Tensor forward(const Tensor& x) override;
  /// As those of `DecoderAttention`.
  Tensor step(const Tensor& x, const DecoderNorm& norm) const;
  bool can_step() const;
  std::string describe() const override;

 private:
  MlpKind kind_;

 public:
  Linear* gate_up_proj = nullptr;  ///< gated and packed; the others are null where unused
  Linear* gate_proj = nullptr;
  Linear* up_proj = nullptr;
  Linear* down_proj = nullptr;
};

/// Attention and MLP in residual branches, with cross attention between them if there is one.
class SASH_API DecoderLayer : public Module {
 public:
  /// Layer `index` of the model.
  DecoderLayer(const DecoderConfig& config, int64_t index);

  /// The residual stream x [B, S, dim] after this layer. `cross` is read if there is cross
  /// attention.
  Tensor forward(const Tensor& x, const AttentionContext& context, const CrossKeys& cross = {});
  /// The same from the stream and its `attn_norm` (itself without one), with the result's norm by
  /// `next`, the next layer's `attn_norm` or the model's `norm` (itself if null). The norm of x may
  /// be undefined: it is then found here. That of the result is, where the next layer can do so in
  /// its first product.
  SumAndNorm forward(const SumAndNorm& x, const AttentionContext& context, const CrossKeys& cross,
                     DecoderNorm* next);
  using Module::forward;
  template <class... Args>
  auto operator()(Args&&... args) {
    return call([&] { return forward(std::forward<Args>(args)...); }, args...);
  }

 private:
  DecoderNorm* norm_before(const char* name, const DecoderConfig& config, bool wanted);
  DecoderNorm* norm_after(const char* name, const DecoderConfig& config);
  SumAndNorm add(const Tensor& branch, const Tensor& residual, DecoderNorm* post,
                 DecoderNorm* next) const;
  bool can_step(const Tensor& x, const AttentionContext& context) const;

  NormPlacement placement_;
  Branches branches_;
  double dropout_;

 public:
  DecoderNorm* attn_norm = nullptr;  ///< norms are null where the placement has none
  DecoderAttention& self_attn;
  DecoderNorm* attn_post_norm = nullptr;
  DecoderNorm* cross_attn_norm = nullptr;
  DecoderAttention* cross_attn = nullptr;
  DecoderNorm* cross_attn_post_norm = nullptr;
  DecoderNorm* mlp_norm = nullptr;
  DecoderMlp& mlp;
  DecoderNorm* mlp_post_norm = nullptr;
};

}  // namespace sash::nn
