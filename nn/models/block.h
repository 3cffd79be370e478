#pragma once

#include <array>
#include <vector>

#include "../attention/key_value_cache.h"
#include "../attention/multihead_attention.h"
#include "../layers/dropout.h"
#include "../layers/linear.h"
#include "../layers/rms_norm.h"
#include "transformer_config.h"

/// The layers of a transformer. `TransformerConfig` names their parameters.
namespace sash::nn {

/// Adds the norm that `config` asks for to `parent`, as its child `name`.
SASH_API Norm* add_norm(Module& parent, const char* name, const TransformerConfig& config);

/// What the tokens of one call of a layer attend to.
struct AttentionContext {
  AttentionMask mask{};   ///< ignored with caches, which have their own
  RotaryAngles angles{};  ///< of the tokens' positions; undefined: no rotation
  RotaryLayout layout = RotaryLayout::half_split;
  /// Caches of earlier tokens, which the call extends: empty, one cache for the whole batch, or one
  /// for each row.
  std::vector<KeyValueCache*> caches{};
  /// Defined: each row is one token, for `attention_step`. int64, the token's position in each
  /// cache, which has room for the token already. The angles are those of the positions from 0 on.
  Tensor positions{};
};

/// Keys and values of an encoder's states for the cross attention of a layer, and their mask.
struct CrossKeys {
  Tensor k, v;  ///< [B, kv_heads, S, head_dim]; of PyTorch's layers the states [B, S, dim]
  AttentionMask mask{};
};

/// Attention with projections, norms of q and k, and rotation.
///
/// The fused kernels take scale, softcap and mask. Sink logits scale the result of the kernels by a
/// factor of its log-sum-exp; norms of q and k are ops before the kernels.
class SASH_API BlockAttention : public ModuleOf<BlockAttention>, public SplitAttention {
 public:
  /// Of layer `index`. `cross`: keys and values are an encoder's, and nothing is rotated.
  explicit BlockAttention(const TransformerConfig& config, bool cross = false, int64_t index = 0);

  /// Self-attention of x [B, S, dim], giving [B, S, dim].
  Tensor forward(const Tensor& x, const AttentionContext& context);
  /// Cross attention of x [B, S, dim].
  Tensor forward(const Tensor& x, const CrossKeys& keys);
  using Module::forward;
  /// x + forward(norm(x)) where each row is one token. The norm, the bias and the sum are part of
  /// the kernels of the products (`linear_step`).
  Tensor step(const Tensor& x, const RMSNorm& norm, const AttentionContext& context) const;
  /// Whether `step` may replace `forward`.
  bool can_step() const;
  /// Keys and values of an encoder's states [B, S, dim], for cross attention.
  CrossKeys cross_keys(const Tensor& states, const AttentionMask& mask = {});
  /// How the heads attend, see `LayerAttention`.
  const AttentionKind& kind() const { return kind_; }
  void set_sequence(const SequenceParallel& sequence) override;
  std::string describe() const override;

 private:
  std::array<Tensor, 3> project(const Tensor& x, const AttentionContext& context);
  std::array<Tensor, 3> split(Tensor packed, const RotaryAngles& angles, RotaryLayout layout) const;
  Tensor normed(const Tensor& heads, RMSNorm* norm) const;
  // `x`: the inputs of self-attention; `cache`: where k and v come from.
  Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionMask& mask,
                const Tensor& x = {}, KeyValueCache* cache = nullptr) const;
  Tensor attend_step(const std::array<Tensor, 3>& qkv, const AttentionContext& context) const;
  Tensor attend_cached(const std::array<Tensor, 3>& qkv, const Tensor& x,
                       const std::vector<KeyValueCache*>& caches) const;

  int64_t dim_, heads_, kv_heads_, head_dim_;
  double scale_, softcap_, dropout_;
  QKNorm qk_norm_;
  AttentionKind kind_;

 public:
  Linear* qkv_proj = nullptr;  ///< of packed self-attention; projections not in use are null
  Linear* q_proj = nullptr;
  Linear* kv_proj = nullptr;  ///< of packed cross attention
  Linear* k_proj = nullptr;
  Linear* v_proj = nullptr;
  Linear* o_proj = nullptr;
  RMSNorm* q_norm = nullptr;
  RMSNorm* k_norm = nullptr;
  Tensor sink_logits;
  NativeSparseBranches* sparse = nullptr;  ///< of the kind nsa, else null
  GatedDeltaNet* delta =
      nullptr;  ///< of the kinds gated_delta and kda: all that there is, else null
};

/// down(dropout(act(up(x)))), where `act` is `kind`'s, relu or a gelu: one op where the modules
/// have no hooks. No dropout if `dropout` is null.
SASH_API Tensor plain_mlp(const Tensor& x, Linear& up, Linear& down, MlpKind kind,
                          Dropout* dropout = nullptr);
/// "gelu_tanh".
SASH_API const char* name_of(MlpKind kind);

/// down_proj(activation(up_proj(x))), or down_proj(glu(gate_up_proj(x))).
class SASH_API BlockMlp : public Module {
 public:
  explicit BlockMlp(const TransformerConfig& config);

  Tensor forward(const Tensor& x) override;
  /// x + forward(norm(x)) where each row is one token.
  Tensor step(const Tensor& x, const RMSNorm& norm) const;
  /// Whether `step` may replace `forward`.
  bool can_step() const;
  std::string describe() const override;

 private:
  MlpKind kind_;

 public:
  Linear* gate_up_proj = nullptr;  ///< gated and packed; projections not in use are null
  Linear* gate_proj = nullptr;
  Linear* up_proj = nullptr;
  Linear* down_proj = nullptr;
};

/// A layer: attention and MLP in residual branches, with cross attention between them if there is
/// one. Derived classes say what attention and MLP compute.
class SASH_API BlockBase : public ModuleOf<BlockBase> {
 public:
  /// x [B, S, dim] after this layer. `cross` is read if there is cross attention.
  Tensor forward(const Tensor& x, const AttentionContext& context, const CrossKeys& cross = {});
  /// Takes x and `attn_norm` of x (computes the norm if it is undefined). Returns x after the layer
  /// and the norm `next` of that: the next layer's `attn_norm`, the model's `norm`, or none. The
  /// norm of the result is undefined if the next layer computes it inside its first product.
  SumAndNorm forward(const SumAndNorm& x, const AttentionContext& context, const CrossKeys& cross,
                     Norm* next) {
    return run(x, context, cross, next);
  }
  using Module::forward;

  /// The attention of PyTorch's layers; else null.
  virtual const MultiheadAttention* multihead() const { return nullptr; }
  /// How its heads attend.
  virtual const AttentionKind& kind() const = 0;

 protected:
  BlockBase(NormPlacement placement, Branches branches, double dropout)
      : placement_(placement), branches_(branches), dropout_(dropout) {}

  /// What `forward` does.
  virtual SumAndNorm run(const SumAndNorm& x, const AttentionContext& context,
                         const CrossKeys& cross, Norm* next);
  virtual Tensor attend(const Tensor& x, const AttentionContext& context) = 0;
  virtual Tensor cross_attend(const Tensor& x, const CrossKeys& keys) {
    return (*cross_attn)(x, keys);
  }
  virtual Tensor feed_forward(const Tensor& x) = 0;

  NormPlacement placement_;
  Branches branches_;
  double dropout_;        // of the branches, unless modules drop them
  bool crosses_ = false;  // whether there is cross attention
  Dropout* attn_dropout_ = nullptr;
  Dropout* cross_dropout_ = nullptr;
  Dropout* mlp_dropout_ = nullptr;

 private:
  SumAndNorm add(const Tensor& branch, const Tensor& residual, Dropout* dropout, Norm* post,
                 Norm* next) const;

 public:
  Norm* attn_norm = nullptr;  ///< norms are null where the placement has none
  Norm* attn_post_norm = nullptr;
  Norm* cross_attn_norm = nullptr;
  BlockAttention* cross_attn = nullptr;
  Norm* cross_attn_post_norm = nullptr;
  Norm* mlp_norm = nullptr;
  Norm* mlp_post_norm = nullptr;
};

/// A layer of a `Decoder` or `Encoder`.
class SASH_API Block : public BlockBase {
 public:
  /// Layer `index` of the model.
  Block(const TransformerConfig& config, int64_t index);

  using BlockBase::forward;
  const AttentionKind& kind() const override { return self_attn.kind(); }

 private:
  SumAndNorm run(const SumAndNorm& x, const AttentionContext& context, const CrossKeys& cross,
                 Norm* next) override;
  Tensor attend(const Tensor& x, const AttentionContext& context) override;
  Tensor feed_forward(const Tensor& x) override;
  BlockAttention& add_attention(const TransformerConfig& config, int64_t index);
  BlockMlp& add_mlp(const TransformerConfig& config);
  Norm* norm_before(const char* name, const TransformerConfig& config);
  Norm* norm_after(const char* name, const TransformerConfig& config);
  bool can_step(const Tensor& x, const AttentionContext& context) const;

 public:
  BlockAttention& self_attn;
  BlockMlp& mlp;
};

/// x [B, S, dim] after all blocks and `norm`, if there is one. Block i attends to
/// `contexts[i % contexts.size()]` and, with cross attention, to `cross[i]`. `recompute`: backward
/// passes compute each block again rather than keep what it saves, see `checkpoint`.
SASH_API Tensor run_blocks(const std::vector<BlockBase*>& blocks, Norm* norm, const Tensor& x,
                           const std::vector<AttentionContext>& contexts,
                           const std::vector<CrossKeys>& cross = {}, bool recompute = false);

}  // namespace sash::nn
