#include "causal_lm.h"

#include <algorithm>

#include "../check.h"

namespace sash::nn {
namespace {

constexpr const char* kModel = "CausalLM";

// How each layer attends, or all of them.
std::vector<AttentionKind> kinds_of(const CausalLMOptions& options) {
  std::vector<AttentionKind> kinds;
  for (const std::string& text : options.layer_attention) {
    kinds.push_back(AttentionKind::parse(text));
  }
  if (kinds.empty()) kinds.push_back(AttentionKind::parse(options.attention));
  for (const AttentionKind& kind : kinds) kind.check_causal(kModel);
  return kinds;
}

void check_layers(const char* what, size_t count, int64_t layers) {
  if (count == 0 || static_cast<int64_t>(count) == layers) return;
  throw ValueError(kModel,
                   std::string("a ") + what + " for each of " + std::to_string(layers) + " layers",
                   std::to_string(count));
}

std::vector<LayerAttention> attention_of(const CausalLMOptions& options) {
  check_layers("layer_mask", options.layer_masks.size(), options.layers);
  check_layers("layer_attention", options.layer_attention.size(), options.layers);
  const std::vector<AttentionKind> kinds = kinds_of(options);
  std::vector<LayerAttention> layers;
  for (size_t i = 0; i < std::max(kinds.size(), options.layer_masks.size()); ++i) {
    AttentionMask mask = AttentionMask::causal() & options.mask & kinds[i % kinds.size()].mask();
    if (!options.layer_masks.empty()) mask = mask & options.layer_masks[i];
    layers.push_back({.mask = mask});
  }
  return layers;
}

TransformerConfig config_of(const CausalLMOptions& options) {
  if (options.learned_positions) check_positive(kModel, "context", options.context);
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

// `kind`: of the layer; a mask is the stack's.
TransformerOptions layer_options(const CausalLMOptions& options, const AttentionKind& kind) {
  return {.dim = options.dim,
          .heads = options.heads,
          .mlp_dim = options.feedforward.value_or(options.mlp_dim),
          .dropout = options.dropout,
          .mlp = MlpKind::gelu,
          .norm_placement = NormPlacement::before,
          .attention = kind.is_mask() ? "dense" : kind.to_string(),
          .kv_heads = options.kv_heads,
          .softcap = options.softcap,
          .alibi = options.alibi,
          .relative_positions = options.relative_positions,
          .sink_logits = options.sink_logits};
}

}  // namespace

CausalLM::CausalLM(const CausalLMOptions& options)
    : LanguageModel(kModel, config_of(options),
                    [&options](Module& stack) {
                      auto& made =
                          stack.register_module<ModuleList<TransformerEncoderLayer>>("layers");
                      const std::vector<AttentionKind> kinds = kinds_of(options);
                      for (int64_t i = 0; i < options.layers; ++i) {
                        const size_t kind = static_cast<size_t>(i) % kinds.size();
                        made.emplace(layer_options(options, kinds[kind]));
                      }
                    }),
      dropout(*dropout_),
      layers(list<TransformerEncoderLayer>()),
      norm(static_cast<LayerNorm&>(*LanguageModel::norm)),
      head(*LanguageModel::head) {
  window_ = config_.max_positions;
}

}  // namespace sash::nn
