#include "causal_lm.h"

#include <algorithm>
#include <cmath>

#include "../../ops/attention/mask/text_positions.h"
#include "../../ops/checks.h"
#include "../../ops/elementwise/binary.h"
#include "../../ops/loss/cross_entropy.h"
#include "../check.h"
#include "../init.h"
#include "positions.h"

namespace sash::nn {
namespace {

const CausalLMOptions& checked(const CausalLMOptions& options) {
  check_positive("CausalLM", "vocab", options.vocab);
  if (options.learned_positions) check_positive("CausalLM", "context", options.context);
  check_positive("CausalLM", "dim", options.dim);
  check_positive("CausalLM", "number of layers", options.layers);
  const auto masks = static_cast<int64_t>(options.layer_masks.size());
  if (masks != 0 && masks != options.layers) {
    throw ValueError("CausalLM",
                     "a layer_mask for each of " + std::to_string(options.layers) + " layers",
                     std::to_string(masks));
  }
  return options;
}

AttentionKind checked_kind(const CausalLMOptions& options) {
  const AttentionKind kind = AttentionKind::parse(options.attention);
  if (kind.can_be_causal()) return kind;
  throw ValueError("CausalLM",
                   "causal attention: a mask, causal_linear or top_k, since in other kinds tokens "
                   "learn of later ones",
                   "'" + kind.to_string() + "'");
}

std::vector<AttentionMask> masks_of(const CausalLMOptions& options, const AttentionKind& kind) {
  const AttentionMask all = AttentionMask::causal() & options.mask & kind.mask();
  std::vector<AttentionMask> masks(static_cast<size_t>(options.layers), all);
  for (size_t i = 0; i < options.layer_masks.size(); ++i) masks[i] = all & options.layer_masks[i];
  return masks;
}

TransformerOptions layer_options(const CausalLMOptions& options, const AttentionKind& kind) {
  return {.dim = options.dim,
          .heads = options.heads,
          .feedforward = options.feedforward,
          .dropout = options.dropout,
          .activation = Activation::gelu,
          .norm_first = true,
          .attention = kind.is_mask() ? "dense" : options.attention,
          .kv_heads = options.kv_heads,
          .softcap = options.softcap,
          .alibi = options.alibi,
          .relative_positions = options.relative_positions,
          .sink_logits = options.sink_logits};
}

}  // namespace

CausalLM::CausalLM(const CausalLMOptions& options)
    : options_(checked(options)),
      kind_(checked_kind(options)),
      masks_(masks_of(options, kind_)),
      token_embedding(register_module<Embedding>("token_embedding", options.vocab, options.dim)),
      position_embedding(
          options.learned_positions
              ? &register_module<Embedding>("position_embedding", options.context, options.dim)
              : nullptr),
      dropout(register_module<Dropout>("dropout", options.dropout)),
      layers(register_module<ModuleList<TransformerEncoderLayer>>("layers")),
      norm(register_module<LayerNorm>("norm", options.dim)),
      head(options.tie_weights ? register_module<Linear>("head", token_embedding.weight)
                               : register_module<Linear>("head", options.dim, options.vocab,
                                                         LinearOptions{.bias = false})) {
  for (int64_t i = 0; i < options.layers; ++i) layers.emplace(layer_options(options, kind_));
  initialise();
}

void CausalLM::initialise() {
  constexpr double kStd = 0.02;
  const double residual_std = kStd / std::sqrt(2.0 * static_cast<double>(options_.layers));
  init::normal_(token_embedding.weight, 0, kStd);
  if (position_embedding) init::normal_(position_embedding->weight, 0, kStd);
  for (TransformerEncoderLayer& layer : layers) {
    init::normal_(layer.self_attn.in_proj_weight, 0, kStd);
    init::normal_(layer.self_attn.out_proj.weight, 0, residual_std);
    init::normal_(layer.linear1.weight, 0, kStd);
    init::zeros_(layer.linear1.bias);
    init::normal_(layer.linear2.weight, 0, residual_std);
    init::zeros_(layer.linear2.bias);
  }
  if (!options_.tie_weights) init::normal_(head.weight, 0, kStd);
}

Tensor CausalLM::hidden(const Tensor& tokens, const AttentionMask& mask, const Tensor& positions) {
  std::vector<AttentionMask> masks = masks_;
  for (AttentionMask& own : masks) own = own & mask;
  Tensor x = embed(tokens, 0, masks, positions);
  const auto hooked = [](const TransformerEncoderLayer& layer) {
    return layer.has_forward_hooks();
  };
  if (std::any_of(layers.begin(), layers.end(), hooked)) {
    auto own = masks.begin();
    for (TransformerEncoderLayer& layer : layers) x = layer(x, *own++);
    return norm(x);
  }
  SumAndNorm both{x, layers[0].norm1(x)};
  for (int64_t i = 0; i < options_.layers; ++i) {
    LayerNorm& next = i + 1 < options_.layers ? layers[i + 1].norm1 : norm;
    both = layers[i](both, masks[static_cast<size_t>(i)], next);
  }
  return both.norm;
}

Tensor CausalLM::forward(const Tensor& tokens, const AttentionMask& mask, const Tensor& positions) {
  return head(hidden(tokens, mask, positions));
}

Tensor CausalLM::loss(const Tensor& tokens, const Tensor& targets,
                      const LinearCrossEntropyOptions& options, const AttentionMask& mask,
                      const Tensor& positions) {
  return named_errors([&] {
    const Tensor x = hidden(tokens, mask, positions);
    if (!head.is_block_sparse() && !head.has_forward_hooks()) {
      return linear_cross_entropy(x, head.weight, targets, options);
    }
    return cross_entropy(head(x), targets,
                         {.ignore_index = options.ignore_index,
                          .label_smoothing = options.label_smoothing,
                          .reduction = options.reduction});
  });
}

Tensor CausalLM::forward(const Tensor& tokens, std::vector<KeyValueCache>& caches) {
  if (static_cast<int64_t>(caches.size()) != options_.layers) {
    throw ValueError("CausalLM",
                     "a cache for each of " + std::to_string(options_.layers) + " layers",
                     std::to_string(caches.size()));
  }
  for (const KeyValueCache& cache : caches) {
    if (cache.length() == caches[0].length()) continue;
    throw ValueError(
        "CausalLM", "caches of one length, or new ones after a call that failed",
        std::to_string(caches[0].length()) + " and " + std::to_string(cache.length()) + " tokens");
  }
  Tensor x = embed(tokens, caches[0].length(), {}, {});
  auto cache = caches.begin();
  for (TransformerEncoderLayer& layer : layers) x = layer(x, *cache++);
  return head(norm(x));
}

Tensor CausalLM::embed(const Tensor& tokens, int64_t first_position,
                       const std::vector<AttentionMask>& masks, const Tensor& positions) {
  if (!tokens.defined()) throw ValueError("CausalLM", "tokens", "an undefined tensor");
  if (tokens.dtype() != DType::int64) {
    throw DTypeError("CausalLM", "int64 tokens", name(tokens.dtype()));
  }
  check_rank("CausalLM", tokens, 2);
  if (positions.defined()) {
    if (!position_embedding) {
      throw ValueError("CausalLM", "a model with learnt positions, for positions by call", "none");
    }
    check_positions("CausalLM", positions, tokens);
  }
  if (!position_embedding) return dropout(token_embedding(tokens));
  const Tensor own = positions.defined() ? positions : positions_in_texts(masks, tokens.size(1));
  if (own.defined()) return dropout(token_embedding(tokens) + (*position_embedding)(own));
  check_room("CausalLM", options_.context, first_position, tokens);
  return dropout(token_embedding(tokens) +
                 position_embedding->rows(first_position, tokens.shape()[1]));
}

bool CausalLM::can_cache() const {
  return kind_.is_mask() &&
         std::all_of(masks_.begin(), masks_.end(),
                     [](const AttentionMask& mask) { return mask.causal_reach().has_value(); });
}

std::vector<KeyValueCache> CausalLM::new_caches() const {
  std::vector<KeyValueCache> caches;
  auto mask = masks_.begin();
  for (const TransformerEncoderLayer& layer : layers) {
    caches.push_back(layer.self_attn.new_cache(*mask++));
  }
  return caches;
}

}  // namespace sash::nn
