#pragma once

#include <optional>
#include <string>

#include "../layers/layer_norm.h"
#include "../layers/module_list.h"
#include "block.h"

namespace sash::nn {

using Activation [[deprecated("use MlpKind")]] = MlpKind;

struct TransformerOptions {
  int64_t dim = 512;
  int64_t heads = 8;
  int64_t layers = 6;                    ///< of an encoder or a decoder
  int64_t mlp_dim = 0;                   ///< width of the MLP's hidden layer; 0 means 4 dim
  std::optional<int64_t> feedforward{};  ///< former name of `mlp_dim`
  double dropout = 0.1;                  ///< of attention probabilities, hidden units and branches
  MlpKind mlp = MlpKind::relu;           ///< relu, gelu or gelu_tanh
  std::optional<MlpKind> activation{};   ///< former name of `mlp`
  NormPlacement norm_placement = NormPlacement::after_sum;  ///< or before
  bool norm_first = false;  ///< PyTorch's name: true means `NormPlacement::before`
  bool final_norm = false;  ///< whether the stack ends with a `LayerNorm`, called `norm`
  double norm_eps = 1e-5;
  std::optional<double> layer_norm_eps{};  ///< former name of `norm_eps`
  bool bias = true;                        ///< of the linear layers and norms
  /// `MultiheadAttentionOptions` explains these.
  std::string attention = "dense";
  int64_t kv_heads = 0;
  double softcap = 0;
  bool alibi = false;
  std::optional<int64_t> relative_positions{};
  bool sink_logits = false;
};

/// What the layers of PyTorch's transformer share. Their children have PyTorch's names.
class SASH_API TransformerLayer : public ModuleOf<TransformerLayer, BlockBase> {
 public:
  using Options = TransformerOptions;

  using BlockBase::forward;
  std::string describe() const override;
  const MultiheadAttention* multihead() const override { return &self_attn; }
  const AttentionKind& kind() const override { return self_attn.kind(); }

 protected:
  TransformerLayer(const TransformerOptions& options, bool crosses);

 private:
  Tensor attend(const Tensor& x, const AttentionContext& context) override;
  Tensor cross_attend(const Tensor& x, const CrossKeys& keys) override;
  Tensor feed_forward(const Tensor& x) override;

  MlpKind kind_;

 public:
  MultiheadAttention& self_attn;
  MultiheadAttention* multihead_attn;  ///< of a decoder; null in an encoder, as those named 3
  Linear& linear1;
  Dropout& dropout;
  Linear& linear2;
  LayerNorm& norm1;
  LayerNorm& norm2;
  LayerNorm* norm3;
  Dropout& dropout1;
  Dropout& dropout2;
  Dropout* dropout3;
};

/// Self-attention and a feed-forward net, each in a residual branch (Vaswani et al., 2017):
///
///     x = norm1(x + attention(x)),        x = norm2(x + mlp(x))        or, with norms before,
///     x = x + attention(norm1(x)),        x = x + mlp(norm2(x)),
///     mlp(x) = linear2(dropout(act(linear1(x))))
///
/// Children, as PyTorch's: `self_attn`, `linear1`, `dropout`, `linear2`, `norm1`, `norm2`,
/// `dropout1`, `dropout2`.
class SASH_API TransformerEncoderLayer
    : public ModuleOf<TransformerEncoderLayer, TransformerLayer> {
 public:
  /// `ValueError` for a negative mlp_dim, another `mlp` or `norm_placement` than those named above,
  /// and as `MultiheadAttention`.
  explicit TransformerEncoderLayer(const TransformerOptions& options) : ModuleOf(options, false) {}

  /// x [B, S, dim] to the same shape, without a mask.
  Tensor forward(const Tensor& x) override;
  Tensor forward(const Tensor& x, const AttentionMask& mask);
  /// x [B, S, dim] of the tokens that follow those in `cache`, a `self_attn.new_cache`: see
  /// `MultiheadAttention`.
  Tensor forward(const Tensor& x, KeyValueCache& cache);
  /// With norms before the branches: takes x and `norm1` of x, and returns x after this layer and
  /// the norm `next` of that, the `norm1` of the next layer. `ValueError` with norms after sums.
  SumAndNorm forward(const SumAndNorm& x, const AttentionMask& mask, LayerNorm& next);
  using BlockBase::forward;
};

/// The same with attention to the states of an encoder, the memory, as a branch between the two:
/// norms after sums are x = norm1(x + attention(x)), x = norm2(x + attention(x, memory)),
/// x = norm3(x + mlp(x)).
///
/// Children, with PyTorch's names: the children of `TransformerEncoderLayer`, and `multihead_attn`
/// (attention to the memory), `norm3` and `dropout3`.
class SASH_API TransformerDecoderLayer
    : public ModuleOf<TransformerDecoderLayer, TransformerLayer> {
 public:
  /// `ValueError` as `TransformerEncoderLayer`. Of the options of attention, `multihead_attn` has
  /// dropout, bias, kv_heads and softcap.
  explicit TransformerDecoderLayer(const TransformerOptions& options) : ModuleOf(options, true) {}

  /// x [B, S, dim] under `mask`, for example `AttentionMask::causal()`, with memory [B, S_m, dim]
  /// under `memory_mask`; as in PyTorch, no mask is set by itself.
  Tensor forward(const Tensor& x, const Tensor& memory, const AttentionMask& mask = {},
                 const AttentionMask& memory_mask = {});
  using BlockBase::forward;
};

/// A stack of layers, `layers.0`, `layers.1`, ..., and a `norm` if `final_norm` is set.
class SASH_API TransformerEncoder : public ModuleOf<TransformerEncoder> {
 public:
  using Options = TransformerOptions;

  /// `ValueError` as `TransformerEncoderLayer`, and unless there is a layer.
  explicit TransformerEncoder(const TransformerOptions& options);

  /// x [B, S, dim] to the same shape, without a mask.
  Tensor forward(const Tensor& x) override;
  Tensor forward(const Tensor& x, const AttentionMask& mask);

  ModuleList<TransformerEncoderLayer>& layers;
  LayerNorm* norm = nullptr;  ///< null without one
};

/// A stack of decoder layers, `layers.0`, `layers.1`, ..., and a `norm` if `final_norm` is set.
class SASH_API TransformerDecoder : public ModuleOf<TransformerDecoder> {
 public:
  using Options = TransformerOptions;

  /// `ValueError` as `TransformerDecoderLayer`, and unless there is a layer.
  explicit TransformerDecoder(const TransformerOptions& options);

  /// See `TransformerDecoderLayer::forward`.
  Tensor forward(const Tensor& x, const Tensor& memory, const AttentionMask& mask = {},
                 const AttentionMask& memory_mask = {});
  using Module::forward;

  ModuleList<TransformerDecoderLayer>& layers;
  LayerNorm* norm = nullptr;  ///< null without one
};

}  // namespace sash::nn
