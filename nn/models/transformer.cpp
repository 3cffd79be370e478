#include "transformer.h"

#include "../../ops/shape/concat.h"
#include "../check.h"

namespace sash::nn {
namespace {

constexpr const char* kLayer = "TransformerEncoderLayer";

int64_t mlp_dim_of(const TransformerOptions& options) {
  const int64_t width = options.feedforward.value_or(options.mlp_dim);
  check_not_negative(kLayer, "mlp_dim", static_cast<double>(width));
  return width ? width : 4 * options.dim;
}

MlpKind kind_of(const TransformerOptions& options) {
  const MlpKind kind = options.activation.value_or(options.mlp);
  if (kind == MlpKind::relu || kind == MlpKind::gelu || kind == MlpKind::gelu_tanh) return kind;
  throw ValueError(kLayer, "mlp relu, gelu or gelu_tanh", name_of(kind));
}

NormPlacement placement_of(const TransformerOptions& options) {
  if (options.norm_first) return NormPlacement::before;
  const NormPlacement placement = options.norm_placement;
  if (placement == NormPlacement::before || placement == NormPlacement::after_sum) return placement;
  throw ValueError(kLayer, "norm_placement before or after_sum", "another");
}

MultiheadAttentionOptions attention_options(const TransformerOptions& options) {
  return {.dropout = options.dropout,
          .bias = options.bias,
          .attention = options.attention,
          .kv_heads = options.kv_heads,
          .softcap = options.softcap,
          .alibi = options.alibi,
          .relative_positions = options.relative_positions,
          .sink_logits = options.sink_logits};
}

/// Of the attention to an encoder's states.
MultiheadAttentionOptions cross_attention_options(const TransformerOptions& options) {
  return {.dropout = options.dropout,
          .bias = options.bias,
          .kv_heads = options.kv_heads,
          .softcap = options.softcap};
}

LayerNormOptions norm_options(const TransformerOptions& options) {
  return {.eps = options.layer_norm_eps.value_or(options.norm_eps), .bias = options.bias};
}

template <class Layer>
void add_layers(const char* op, ModuleList<Layer>& layers, const TransformerOptions& options) {
  check_positive(op, "number of layers", options.layers);
  for (int64_t i = 0; i < options.layers; ++i) layers.emplace(options);
}

template <class Layer>
std::vector<BlockBase*> blocks_of(ModuleList<Layer>& layers) {
  std::vector<BlockBase*> blocks;
  for (Layer& layer : layers) blocks.push_back(&layer);
  return blocks;
}

}  // namespace

TransformerLayer::TransformerLayer(const TransformerOptions& options, bool crosses)
    : ModuleOf(placement_of(options), Branches::sequential, options.dropout),
      kind_(kind_of(options)),
      self_attn(register_module<MultiheadAttention>("self_attn", options.dim, options.heads,
                                                    attention_options(options))),
      multihead_attn(crosses ? &register_module<MultiheadAttention>(
                                   "multihead_attn", options.dim, options.heads,
                                   cross_attention_options(options))
                             : nullptr),
      linear1(register_module<Linear>("linear1", options.dim, mlp_dim_of(options),
                                      LinearOptions{.bias = options.bias})),
      dropout(register_module<Dropout>("dropout", options.dropout)),
      linear2(register_module<Linear>("linear2", mlp_dim_of(options), options.dim,
                                      LinearOptions{.bias = options.bias})),
      norm1(register_module<LayerNorm>("norm1", options.dim, norm_options(options))),
      norm2(register_module<LayerNorm>("norm2", options.dim, norm_options(options))),
      norm3(crosses ? &register_module<LayerNorm>("norm3", options.dim, norm_options(options))
                    : nullptr),
      dropout1(register_module<Dropout>("dropout1", options.dropout)),
      dropout2(register_module<Dropout>("dropout2", options.dropout)),
      dropout3(crosses ? &register_module<Dropout>("dropout3", options.dropout) : nullptr) {
  const bool before = placement_ == NormPlacement::before;
  crosses_ = crosses;
  (before ? attn_norm : attn_post_norm) = &norm1;
  if (crosses) (before ? cross_attn_norm : cross_attn_post_norm) = &norm2;
  (before ? mlp_norm : mlp_post_norm) = crosses ? norm3 : &norm2;
  attn_dropout_ = &dropout1;
  cross_dropout_ = crosses ? &dropout2 : nullptr;
  mlp_dropout_ = crosses ? dropout3 : &dropout2;
}

Tensor TransformerLayer::cross_attend(const Tensor& x, const CrossKeys& keys) {
  return (*multihead_attn)(x, keys.k, keys.v, keys.mask);
}

Tensor TransformerLayer::attend(const Tensor& x, const AttentionContext& context) {
  if (context.caches.empty()) return self_attn(x, context.mask);
  if (context.caches.size() == 1) return self_attn(x, *context.caches[0]);
  std::vector<Tensor> rows;  // of different texts
  for (KeyValueCache* const cache : context.caches) {
    rows.push_back(self_attn(x.narrow(0, static_cast<int64_t>(rows.size()), 1), *cache));
  }
  return cat(rows, 0);
}

Tensor TransformerLayer::feed_forward(const Tensor& x) {
  return plain_mlp(x, linear1, linear2, kind_, &dropout);
}

Tensor TransformerEncoderLayer::forward(const Tensor& x) { return forward(x, AttentionMask()); }

Tensor TransformerEncoderLayer::forward(const Tensor& x, const AttentionMask& mask) {
  return forward(x, AttentionContext{.mask = mask});
}

Tensor TransformerEncoderLayer::forward(const Tensor& x, KeyValueCache& cache) {
  return forward(x, AttentionContext{.caches = {&cache}});
}

SumAndNorm TransformerEncoderLayer::forward(const SumAndNorm& x, const AttentionMask& mask,
                                            LayerNorm& next) {
  if (!attn_norm) {
    throw ValueError(type_name(), "norms before the branches for the norm of the next layer",
                     "norms after sums");
  }
  return forward(x, AttentionContext{.mask = mask}, {}, &next);
}

std::string TransformerLayer::describe() const {
  return type_name() + "(" + name_of(kind_) + (attn_norm ? ", norm first)" : ")");
}

TransformerEncoder::TransformerEncoder(const TransformerOptions& options)
    : layers(register_module<ModuleList<TransformerEncoderLayer>>("layers")) {
  add_layers("TransformerEncoder", layers, options);
  if (options.final_norm) {
    norm = &register_module<LayerNorm>("norm", options.dim, norm_options(options));
  }
}

Tensor TransformerEncoder::forward(const Tensor& x) { return forward(x, AttentionMask()); }

Tensor TransformerEncoder::forward(const Tensor& x, const AttentionMask& mask) {
  return run_blocks(blocks_of(layers), norm, x, {{.mask = mask}});
}

Tensor TransformerDecoderLayer::forward(const Tensor& x, const Tensor& memory,
                                        const AttentionMask& mask,
                                        const AttentionMask& memory_mask) {
  return forward(x, AttentionContext{.mask = mask}, CrossKeys{memory, memory, memory_mask});
}

TransformerDecoder::TransformerDecoder(const TransformerOptions& options)
    : layers(register_module<ModuleList<TransformerDecoderLayer>>("layers")) {
  add_layers("TransformerDecoder", layers, options);
  if (options.final_norm) {
    norm = &register_module<LayerNorm>("norm", options.dim, norm_options(options));
  }
}

Tensor TransformerDecoder::forward(const Tensor& x, const Tensor& memory, const AttentionMask& mask,
                                   const AttentionMask& memory_mask) {
  const std::vector<CrossKeys> cross(static_cast<size_t>(layers.size()),
                                     {memory, memory, memory_mask});
  return run_blocks(blocks_of(layers), norm, x, {{.mask = mask}}, cross);
}

}  // namespace sash::nn
