#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "language_model.h"
#include "transformer.h"

namespace sash::nn {

struct CausalLMOptions {
  int64_t vocab = 0;
  int64_t context = 0;  ///< most tokens the model can see at once: its learnt positions
  int64_t dim = 128;
  int64_t heads = 4;
  int64_t layers = 4;
  int64_t mlp_dim = 0;                   ///< width of the MLP's hidden layer; 0 means 4 dim
  std::optional<int64_t> feedforward{};  ///< former name of `mlp_dim`
  double dropout = 0;
  bool tie_weights = false;  ///< the head shares the weight of the token embedding
  /// How the heads attend, in the syntax of `AttentionKind::parse`: a mask, or a kind that can be
  /// causal: causal_linear, top_k, moba, nsa, gated_delta or kda.
  std::string attention = "dense";
  /// Combined with `causal()` and with `attention`, if that is a mask.
  AttentionMask mask{};
  /// Combined with these too: one mask for each layer. Empty: none.
  std::vector<AttentionMask> layer_masks{};
  /// Instead of `attention`: one for each layer. Empty: `attention` in all.
  std::vector<std::string> layer_attention{};
  /// False: no learnt positions, but `alibi`, `relative_positions` or the mask; `context` is then
  /// ignored, and any length is allowed.
  bool learned_positions = true;
  /// `MultiheadAttentionOptions` explains these.
  int64_t kv_heads = 0;
  double softcap = 0;
  bool alibi = false;
  std::optional<int64_t> relative_positions{};
  bool sink_logits = false;
};

/// A decoder-only language model with learnt positions and pre-norm GELU layers (Radford et al.,
/// "Language models are unsupervised multitask learners", 2019), whose layers are PyTorch's.
///
/// Children: `token_embedding`, `position_embedding`, `dropout`, `layers`, `norm`, `head` (without
/// bias). Weights start as N(0, 0.02^2), those of the projections into the residual stream
/// N(0, 0.02^2 / (2 layers)); biases are 0.
class SASH_API CausalLM : public LanguageModel {
 public:
  using Options = CausalLMOptions;

  /// `ValueError` unless the extents are positive, heads divides dim, dropout lies in [0, 1],
  /// `layer_masks` and `layer_attention` are empty or one per layer, and the kinds of attention can
  /// be causal; for the rest as `MultiheadAttention`.
  explicit CausalLM(const CausalLMOptions& options);

  int64_t vocab() const { return config_.vocab; }
  /// 0 without learnt positions.
  int64_t context() const { return config_.max_positions; }

  Dropout& dropout;
  ModuleList<TransformerEncoderLayer>& layers;
  LayerNorm& norm;
  Linear& head;
};

}  // namespace sash::nn
