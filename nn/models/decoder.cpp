#include "decoder.h"

#include <algorithm>
#include <cmath>

#include "../../ops/checks.h"
#include "../../ops/elementwise/binary.h"
#include "../../ops/elementwise/dropout.h"
#include "../../ops/elementwise/gelu.h"
#include "../../ops/elementwise/unary.h"
#include "../../ops/loss/cross_entropy.h"
#include "../../tensor/factories.h"
#include "../check.h"
#include "../init.h"

namespace sash::nn {
namespace {

void check_heads(const DecoderConfig& config) {
  const char* op = "DecoderConfig";
  check_positive(op, "number of heads", config.heads);
  for (const auto& [what, value] : {std::pair{"kv_heads", config.kv_heads},
                                    {"head_dim", config.head_dim},
                                    {"mlp_dim", config.mlp_dim},
                                    {"max_positions", config.max_positions},
                                    {"token_types", config.token_types}}) {
    check_not_negative(op, what, static_cast<double>(value));
  }
  if (config.head_dim == 0 && config.dim % config.heads != 0) {
    throw ValueError(op, "dim divisible by heads, or a head_dim",
                     std::to_string(config.dim) + " and " + std::to_string(config.heads));
  }
  if (config.kv_heads > 0 && config.heads % config.kv_heads != 0) {
    throw ValueError(op, "heads divisible by kv_heads",
                     std::to_string(config.heads) + " and " + std::to_string(config.kv_heads));
  }
}

const DecoderConfig& checked(const DecoderConfig& config) {
  const char* op = "DecoderConfig";
  check_positive(op, "vocab", config.vocab);
  check_positive(op, "dim", config.dim);
  check_positive(op, "number of layers", config.layers);
  check_heads(config);
  check_probability(op, "dropout", config.dropout);
  check_probability(op, "attn_dropout", config.attn_dropout);
  check_not_negative(op, "attn_softcap", config.attn_softcap);
  check_not_negative(op, "logit_softcap", config.logit_softcap);
  if (!(config.norm_eps > 0)) throw ValueError(op, "norm_eps > 0", to_text(config.norm_eps));
  if (config.attention.empty()) throw ValueError(op, "attention of at least one layer", "none");
  if (config.branches != Branches::sequential &&
      (config.norm_placement != NormPlacement::before || config.cross_attention)) {
    throw ValueError(op, "norms before the branches, and no cross attention, for parallel branches",
                     "others");
  }
  return config;
}

DecoderConfig causal(DecoderConfig config) {
  for (LayerAttention& layer : config.attention) {
    layer.mask =
        layer.mask.shows_all() ? AttentionMask::causal() : AttentionMask::causal() & layer.mask;
  }
  return config;
}

Tensor softcapped(const Tensor& x, double c) { return c > 0 ? tanh(x * (1 / c)) * c : x; }

}  // namespace

TransformerStack::TransformerStack(const DecoderConfig& config)
    : config_(checked(config)),
      token_embedding(register_module<Embedding>("token_embedding", config.vocab, config.dim)),
      position_embedding(
          config.max_positions > 0
              ? &register_module<Embedding>("position_embedding", config.max_positions, config.dim)
              : nullptr),
      type_embedding(config.token_types > 0 ? &register_module<Embedding>(
                                                  "type_embedding", config.token_types, config.dim)
                                            : nullptr),
      embedding_norm(config.embedding_norm ? &register_module<DecoderNorm>("embedding_norm", config)
                                           : nullptr),
      layers(register_module<ModuleList<DecoderLayer>>("layers")),
      norm(config.final_norm ? &register_module<DecoderNorm>("norm", config) : nullptr) {
  for (int64_t i = 0; i < config.layers; ++i) layers.emplace(config, i);
  const int64_t head_dim = config.head_dim > 0 ? config.head_dim : config.dim / config.heads;
  for (const LayerAttention& layer : config.attention) {
    tables_.push_back(layer.rotary ? std::optional(RotaryTable(*layer.rotary, head_dim))
                                   : std::nullopt);
  }
  make_head();
  initialise();
}

void TransformerStack::make_head() {
  if (config_.head == HeadKind::none) return;
  if (config_.head == HeadKind::transform) {
    head_dense = &register_module<Linear>("head_dense", config_.dim, config_.dim,
                                          LinearOptions{.bias = config_.head_dense_bias});
    head_norm = &register_module<DecoderNorm>("head_norm", config_);
  }
  if (config_.tie_weights) {
    head = &register_module<Linear>("head", token_embedding.weight,
                                    config_.head_bias ? zeros({config_.vocab}) : Tensor());
  } else {
    head = &register_module<Linear>("head", config_.dim, config_.vocab,
                                    LinearOptions{.bias = config_.head_bias});
  }
}

void TransformerStack::initialise() {
  const double residual_std =
      config_.init_std / std::sqrt(2.0 * static_cast<double>(config_.layers));
  for (const auto& [name, module] : named_modules()) {
    if (auto* const linear = dynamic_cast<Linear*>(module)) {
      const bool residual = name.ends_with("o_proj") || name.ends_with("down_proj");
      init::normal_(linear->weight, 0, residual ? residual_std : config_.init_std);
      if (linear->bias.defined()) init::zeros_(linear->bias);
    } else if (auto* const table = dynamic_cast<Embedding*>(module)) {
      init::normal_(table->weight, 0, config_.init_std);
    }
  }
}

const LayerAttention& TransformerStack::attention_of(int64_t layer) const {
  return config_.attention[entry_of(layer)];
}

size_t TransformerStack::entry_of(int64_t layer) const {
  return static_cast<size_t>(layer) % config_.attention.size();
}

Tensor TransformerStack::embed(const Tensor& tokens, const Tensor& types, int64_t first_position) {
  const char* op = "TransformerStack";
  check_defined(op, tokens, "tokens");
  check_dtype(op, tokens, DType::int64);
  check_rank(op, tokens, 2);
  Tensor x = token_embedding(tokens);
  if (config_.embedding_scale != 1) {
    const Tensor scale = full({}, config_.embedding_scale, x.options());
    x = x * scale;
  }
  if (type_embedding) {
    x = x + (types.defined() ? (*type_embedding)(types) : type_embedding->weight.select(0, 0));
  }
  if (position_embedding) {
    const int64_t room = config_.max_positions - first_position;
    if (tokens.size(1) > room) {
      throw ShapeError(op, "tokens [B, T] with T at most " + std::to_string(room),
                       to_string(tokens.shape()));
    }
    x = x + position_embedding->weight.narrow(0, first_position, tokens.size(1));
  }
  if (embedding_norm) x = (*embedding_norm)(x);
  return dropout(x, is_training() ? config_.dropout : 0);
}

Tensor TransformerStack::run(const Tensor& embedded, const AttentionMask& mask,
                             int64_t first_position, std::vector<KeyValueCache>* caches,
                             const std::vector<CrossKeys>* cross) {
  std::vector<RotaryAngles> angles;
  for (std::optional<RotaryTable>& table : tables_) {
    angles.push_back(
        table ? table->angles(first_position, embedded.size(1), embedded.dtype(), embedded.device())
              : RotaryAngles());
  }
  SumAndNorm x{embedded, layers[0].attn_norm ? (*layers[0].attn_norm)(embedded) : embedded};
  for (int64_t i = 0; i < config_.layers; ++i) {
    const auto at = static_cast<size_t>(i);
    const LayerAttention& attention = attention_of(i);
    AttentionContext context{.mask = mask.shows_all() ? attention.mask : attention.mask & mask,
                             .angles = angles[entry_of(i)]};
    if (attention.rotary) context.layout = attention.rotary->layout;
    if (caches) context.cache = &(*caches)[at];
    const CrossKeys keys = cross ? (*cross)[at] : CrossKeys();
    DecoderNorm* const next = i + 1 < config_.layers ? layers[i + 1].attn_norm : norm;
    if (layers[i].has_forward_hooks()) {
      const Tensor y = layers[i](x.sum, context, keys);
      x = {y, next ? (*next)(y) : y};
    } else {
      x = layers[i](x, context, keys, next);
    }
  }
  return x.norm;
}

Tensor TransformerStack::head_of(const Tensor& states) {
  if (!head) return states;
  const Tensor x = head_dense ? (*head_norm)(gelu((*head_dense)(states))) : states;
  return softcapped((*head)(x), config_.logit_softcap);
}

Decoder::Decoder(const DecoderConfig& config) : TransformerStack(causal(config)) {}

Tensor Decoder::hidden(const Tensor& tokens) {
  return run(embed(tokens, {}, 0), {}, 0, nullptr, nullptr);
}

Tensor Decoder::forward(const Tensor& tokens) { return head_of(hidden(tokens)); }

Tensor Decoder::forward(const Tensor& tokens, std::vector<KeyValueCache>& caches) {
  if (static_cast<int64_t>(caches.size()) != config_.layers) {
    throw ValueError("Decoder", "a cache for each of " + std::to_string(config_.layers) + " layers",
                     std::to_string(caches.size()));
  }
  const int64_t first = caches[0].length();
  for (const KeyValueCache& cache : caches) {
    if (cache.length() == first) continue;
    throw ValueError("Decoder", "caches of one length, or new ones after a call that failed",
                     std::to_string(first) + " and " + std::to_string(cache.length()) + " tokens");
  }
  return head_of(run(embed(tokens, {}, first), {}, first, &caches, nullptr));
}

Tensor Decoder::loss(const Tensor& tokens, const Tensor& targets,
                     const LinearCrossEntropyOptions& options) {
  return named_errors([&] {
    if (!head) throw ValueError("Decoder", "a head for a loss", "none");
    const Tensor x = hidden(tokens);
    const bool fuses = !head_dense && !head->bias.defined() && config_.logit_softcap == 0 &&
                       !head->is_block_sparse() && !head->has_forward_hooks();
    if (fuses) return linear_cross_entropy(x, head->weight, targets, options);
    return cross_entropy(head_of(x), targets,
                         {.ignore_index = options.ignore_index,
                          .label_smoothing = options.label_smoothing,
                          .reduction = options.reduction});
  });
}

bool Decoder::can_cache() const {
  return std::all_of(config_.attention.begin(), config_.attention.end(),
                     [](const LayerAttention& layer) { return layer.mask.causal_reach(); });
}

std::vector<KeyValueCache> Decoder::new_caches() const {
  std::vector<KeyValueCache> caches;
  for (int64_t i = 0; i < config_.layers; ++i) caches.emplace_back(layer_mask(i));
  return caches;
}

Encoder::Encoder(const DecoderConfig& config) : TransformerStack(config) {}

Tensor Encoder::hidden(const Tensor& tokens, const AttentionMask& mask, const Tensor& types) {
  return run(embed(tokens, types, 0), mask, 0, nullptr, nullptr);
}

Tensor Encoder::forward(const Tensor& tokens, const AttentionMask& mask, const Tensor& types) {
  return head_of(hidden(tokens, mask, types));
}

}  // namespace sash::nn
