#include "causal_lm.h"

#include "../check.h"

namespace sash::nn {
namespace {

AttentionKind checked_kind(const CausalLMOptions& options) {
  const AttentionKind kind = AttentionKind::parse(options.attention);
  if (kind.can_be_causal()) return kind;
  throw ValueError("CausalLM",
                   "causal attention: a mask, causal_linear or top_k, since in other kinds tokens "
                   "learn of later ones",
                   "'" + kind.to_string() + "'");
}

std::vector<LayerAttention> attention_of(const CausalLMOptions& options) {
  const AttentionMask all = AttentionMask::causal() & options.mask & checked_kind(options).mask();
  if (options.layer_masks.empty()) return {{.mask = all}};
  const auto masks = static_cast<int64_t>(options.layer_masks.size());
  if (masks != options.layers) {
    throw ValueError("CausalLM",
                     "a layer_mask for each of " + std::to_string(options.layers) + " layers",
                     std::to_string(masks));
  }
  std::vector<LayerAttention> layers;
  for (const AttentionMask& mask : options.layer_masks) layers.push_back({.mask = all & mask});
  return layers;
}

TransformerConfig config_of(const CausalLMOptions& options) {
  if (options.learned_positions) check_positive("CausalLM", "context", options.context);
  return {.vocab = options.vocab,
          .dim = options.dim,
          .heads = options.heads,
          .layers = options.layers,
          .kv_heads = options.kv_heads,
          .mlp_dim = options.feedforward.value_or(options.mlp_dim),
          .norm = NormKind::layer_norm,
          .norm_eps = 1e-5,
          .norm_bias = true,
          .attention = attention_of(options),
          .attn_softcap = options.softcap,
          .sink_logits = options.sink_logits,
          .qkv_bias = true,
          .out_bias = true,
          .mlp = MlpKind::gelu,
          .mlp_bias = true,
          .max_positions = options.learned_positions ? options.context : 0,
          .no_positions = !options.learned_positions,
          .tie_weights = options.tie_weights,
          .dropout = options.dropout,
          .attn_dropout = options.dropout};
}

TransformerOptions layer_options(const CausalLMOptions& options) {
  return {.dim = options.dim,
          .heads = options.heads,
          .mlp_dim = options.feedforward.value_or(options.mlp_dim),
          .dropout = options.dropout,
          .mlp = MlpKind::gelu,
          .norm_placement = NormPlacement::before,
          // A mask is the stack's.
          .attention = checked_kind(options).is_mask() ? "dense" : options.attention,
          .kv_heads = options.kv_heads,
          .softcap = options.softcap,
          .alibi = options.alibi,
          .relative_positions = options.relative_positions,
          .sink_logits = options.sink_logits};
}

}  // namespace

CausalLM::CausalLM(const CausalLMOptions& options)
    : LanguageModel("CausalLM", config_of(options),
                    [&options](Module& stack) {
                      auto& made =
                          stack.register_module<ModuleList<TransformerEncoderLayer>>("layers");
                      for (int64_t i = 0; i < options.layers; ++i) {
                        made.emplace(layer_options(options));
                      }
                    }),
      dropout(*dropout_),
      layers(list<TransformerEncoderLayer>()),
      norm(static_cast<LayerNorm&>(*LanguageModel::norm)),
      head(*LanguageModel::head) {
  window_ = config_.max_positions;
}

}  // namespace sash::nn
