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

LayerNormOptions norm_options(const TransformerOptions& options) {
  return {.eps = options.layer_norm_eps.value_or(options.norm_eps), .bias = options.bias};
}

}  // namespace

TransformerEncoderLayer::TransformerEncoderLayer(const TransformerOptions& options)
    : ModuleOf(placement_of(options), Branches::sequential, options.dropout),
      kind_(kind_of(options)),
      self_attn(register_module<MultiheadAttention>("self_attn", options.dim, options.heads,
                                                    attention_options(options))),
      linear1(register_module<Linear>("linear1", options.dim, mlp_dim_of(options),
                                      LinearOptions{.bias = options.bias})),
      dropout(register_module<Dropout>("dropout", options.dropout)),
      linear2(register_module<Linear>("linear2", mlp_dim_of(options), options.dim,
                                      LinearOptions{.bias = options.bias})),
      norm1(register_module<LayerNorm>("norm1", options.dim, norm_options(options))),
      norm2(register_module<LayerNorm>("norm2", options.dim, norm_options(options))),
      dropout1(register_module<Dropout>("dropout1", options.dropout)),
      dropout2(register_module<Dropout>("dropout2", options.dropout)) {
  const bool before = placement_ == NormPlacement::before;
  (before ? attn_norm : attn_post_norm) = &norm1;
  (before ? mlp_norm : mlp_post_norm) = &norm2;
  attn_dropout_ = &dropout1;
  mlp_dropout_ = &dropout2;
}

Tensor TransformerEncoderLayer::attend(const Tensor& x, const AttentionContext& context) {
  if (context.caches.empty()) return self_attn(x, context.mask);
  if (context.caches.size() == 1) return self_attn(x, *context.caches[0]);
  std::vector<Tensor> rows;  // of different texts
  for (KeyValueCache* const cache : context.caches) {
    rows.push_back(self_attn(x.narrow(0, static_cast<int64_t>(rows.size()), 1), *cache));
  }
  return cat(rows, 0);
}

Tensor TransformerEncoderLayer::feed_forward(const Tensor& x) {
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

std::string TransformerEncoderLayer::describe() const {
  return std::string("TransformerEncoderLayer(") + name_of(kind_) +
         (attn_norm ? ", norm first)" : ")");
}

TransformerEncoder::TransformerEncoder(const TransformerOptions& options)
    : layers(register_module<ModuleList<TransformerEncoderLayer>>("layers")) {
  check_positive("TransformerEncoder", "number of layers", options.layers);
  for (int64_t i = 0; i < options.layers; ++i) layers.emplace(options);
  if (options.final_norm) {
    norm = &register_module<LayerNorm>("norm", options.dim, norm_options(options));
  }
}

Tensor TransformerEncoder::forward(const Tensor& x) { return forward(x, AttentionMask()); }

Tensor TransformerEncoder::forward(const Tensor& x, const AttentionMask& mask) {
  std::vector<BlockBase*> blocks;
  for (TransformerEncoderLayer& layer : layers) blocks.push_back(&layer);
  return run_blocks(blocks, norm, x, {{.mask = mask}});
}

}  // namespace sash::nn
