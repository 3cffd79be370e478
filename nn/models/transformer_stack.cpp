#include "transformer_stack.h"

#include <algorithm>
#include <cmath>

#include "../../ops/attention/mask/text_positions.h"
#include "../../ops/checks.h"
#include "../../ops/elementwise/binary.h"
#include "../../ops/elementwise/dropout.h"
#include "../../ops/elementwise/gelu.h"
#include "../../ops/elementwise/unary.h"
#include "../../ops/shape/concat.h"
#include "../../tensor/factories.h"
#include "../check.h"
#include "../init.h"

namespace sash::nn {
namespace {

void check_heads(const char* op, const TransformerConfig& config) {
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

bool has_positions(const TransformerConfig& config) {
  return config.max_positions > 0 ||
         std::any_of(config.attention.begin(), config.attention.end(),
                     [](const LayerAttention& layer) { return layer.rotary.has_value(); });
}

TransformerConfig checked(const char* op, TransformerConfig config) {
  check_positive(op, "vocab", config.vocab);
  check_positive(op, "dim", config.dim);
  check_positive(op, "number of layers", config.layers);
  check_heads(op, config);
  check_probability(op, "dropout", config.dropout);
  check_probability(op, "attn_dropout", config.attn_dropout);
  check_not_negative(op, "attn_softcap", config.attn_softcap);
  check_not_negative(op, "logit_softcap", config.logit_softcap);
  if (!(config.norm_eps > 0)) throw ValueError(op, "norm_eps > 0", to_text(config.norm_eps));
  if (config.attention.empty()) throw ValueError(op, "attention of at least one layer", "none");
  for (LayerAttention& layer : config.attention) {
    const AttentionKind kind = AttentionKind::parse(layer.kind);
    if (!kind.is_mask()) continue;
    layer.mask = layer.mask & kind.mask();
    layer.kind = "dense";
  }
  if (config.no_positions && has_positions(config)) {
    throw ValueError(op, "no_positions, or max_positions or rotary in attention", "both");
  }
  if (config.branches != Branches::sequential &&
      (config.norm_placement != NormPlacement::before || config.cross_attention)) {
    throw ValueError(op, "norms before the branches, and no cross attention, for parallel branches",
                     "others");
  }
  if (!config.no_positions && !has_positions(config)) {
    for (LayerAttention& layer : config.attention) layer.rotary.emplace();
  }
  return config;
}

// `part` of the position; of several positions, the parts as a batch.
template <class Part>
Tensor by_row(const std::vector<int64_t>& positions, const Part& part) {
  if (positions.size() == 1) return part(positions[0]);
  std::vector<Tensor> rows;
  for (const int64_t position : positions) rows.push_back(part(position));
  return stack(rows, 0);
}

// The activation of a transform head: the MLPs' where these have no gate, else GELU.
Tensor head_activation(const Tensor& x, MlpKind mlp) {
  if (mlp == MlpKind::relu) return relu(x);
  return gelu(x, mlp == MlpKind::gelu_tanh ? GeluApproximation::tanh : GeluApproximation::none);
}

Tensor softcapped(const Tensor& x, double c) { return c > 0 ? tanh(x * (1 / c)) * c : x; }

}  // namespace

TransformerStack::TransformerStack(const char* op, const TransformerConfig& config,
                                   const MakeLayers& make_layers)
    : config_(checked(op, config)),
      token_embedding(register_module<Embedding>("token_embedding", config.vocab, config.dim,
                                                 EmbeddingOptions{.draw = config.draw_weights})) {
  const auto embedding = [&](const char* name, int64_t count) {
    return count > 0 ? &register_module<Embedding>(name, count, config.dim,
                                                   EmbeddingOptions{.draw = config.draw_weights})
                     : nullptr;
  };
  position_embedding = embedding("position_embedding", config.max_positions);
  type_embedding = embedding("type_embedding", config.token_types);
  if (config.embedding_norm) embedding_norm = add_norm(*this, "embedding_norm", config);
  if (make_layers) {
    dropout_ = &register_module<Dropout>("dropout", config.dropout);
    make_layers(*this);
  } else {
    auto& layers = register_module<ModuleList<Block>>("layers");
    for (int64_t i = 0; i < config.layers; ++i) layers.emplace(config, i);
  }
  list_ = children().back().second;
  for (const auto& [name, block] : list_->children()) {
    blocks_.push_back(static_cast<BlockBase*>(block));
  }
  if (config.final_norm) norm = add_norm(*this, "norm", config);
  const int64_t head_dim = config.head_dim > 0 ? config.head_dim : config.dim / config.heads;
  for (const LayerAttention& layer : config_.attention) {
    tables_.push_back(layer.rotary ? std::optional(RotaryTable(*layer.rotary, head_dim))
                                   : std::nullopt);
  }
  make_head();
  if (config_.draw_weights) initialise();
  config_.draw_weights = true;
}

void TransformerStack::make_head() {
  if (config_.head == HeadKind::none) return;
  if (config_.head == HeadKind::transform) {
    head_dense = &register_module<Linear>(
        "head_dense", config_.dim, config_.dim,
        LinearOptions{.bias = config_.head_dense_bias, .draw = config_.draw_weights});
    head_norm = add_norm(*this, "head_norm", config_);
  }
  if (config_.tie_weights) {
    head = &register_module<Linear>("head", token_embedding.weight,
                                    config_.head_bias ? zeros({config_.vocab}) : Tensor());
  } else {
    head = &register_module<Linear>(
        "head", config_.dim, config_.vocab,
        LinearOptions{.bias = config_.head_bias, .draw = config_.draw_weights});
  }
}

void TransformerStack::initialise() {
  const double plain_std = config_.init_std;
  const double residual_std = plain_std / std::sqrt(2.0 * static_cast<double>(config_.layers));
  for (const auto& [name, module] : named_modules()) {
    if (auto* const linear = dynamic_cast<Linear*>(module)) {
      // The tied head of PyTorch's layers is not drawn a second time; the identity has no weight.
      if (linear == head && config_.tie_weights && dropout_) continue;
      if (!linear->weight.defined()) continue;
      const bool residual = name.ends_with("o_proj") || name.ends_with("down_proj") ||
                            name.ends_with("out_proj") || name.ends_with("linear2");
      init::normal_(linear->weight, 0, residual ? residual_std : plain_std);
      if (linear->bias.defined()) init::zeros_(linear->bias);
    } else if (auto* const table = dynamic_cast<Embedding*>(module)) {
      init::normal_(table->weight, 0, plain_std);
    } else if (auto* const attention = dynamic_cast<MultiheadAttention*>(module)) {
      if (!attention->delta) init::normal_(attention->in_proj_weight, 0, plain_std);
    }
  }
}

void TransformerStack::check_tokens(const Tensor& tokens) const {
  if (!tokens.defined()) throw ValueError(type_name(), "tokens", "an undefined tensor");
  if (tokens.dtype() != DType::int64) {
    throw DTypeError(type_name(), "int64 tokens", sash::name(tokens.dtype()));
  }
  if (tokens.rank() != 2) check_rank(type_name().c_str(), tokens, 2);
}

TransformerStack::Past::Past(const TransformerStack& stack,
                             std::vector<std::vector<KeyValueCache>*> given, int64_t rows)
    : texts(std::move(given)) {
  const std::string op = stack.type_name();
  const int64_t count = stack.config_.layers;
  if (texts.size() != 1 && static_cast<int64_t>(texts.size()) != rows) {
    throw ValueError(op, "caches of one text, or of each of " + std::to_string(rows),
                     std::to_string(texts.size()));
  }
  lengths.clear();
  for (const std::vector<KeyValueCache>* const caches : texts) {
    if (std::count(texts.begin(), texts.end(), caches) > 1) {
      throw ValueError(op, "caches of its own for each text", "the same for two");
    }
    if (static_cast<int64_t>(caches->size()) != count) {
      throw ValueError(op, "a cache for each of " + std::to_string(count) + " layers",
                       std::to_string(caches->size()));
    }
    lengths.push_back((*caches)[0].length());
    for (int64_t layer = 0; layer < count; ++layer) {
      const KeyValueCache& cache = (*caches)[static_cast<size_t>(layer)];
      check_mask_of(op, cache, stack.layer_mask(layer));
      if (cache.length() == lengths.back()) continue;
      throw ValueError(
          op, "caches of one length, or new ones after a call that failed",
          std::to_string(lengths.back()) + " and " + std::to_string(cache.length()) + " tokens");
    }
  }
}

Tensor TransformerStack::embed(const Tensor& tokens, const Tensor& types, const Past& past) {
  check_tokens(tokens);
  Tensor x = token_embedding(tokens);
  if (config_.embedding_scale != 1) {
    const Tensor scale = full({}, config_.embedding_scale, x.options());
    x = x * scale;
  }
  if (type_embedding) {
    x = x + (types.defined() ? (*type_embedding)(types) : type_embedding->rows(0, 1));
  }
  if (position_embedding) x = x + learnt_positions(tokens, past);
  if (embedding_norm) x = (*embedding_norm)(x);
  return dropout_ ? (*dropout_)(x) : dropout(x, is_training() ? config_.dropout : 0);
}

Tensor TransformerStack::learnt_positions(const Tensor& tokens, const Past& past) {
  if (past.token_positions.defined()) return (*position_embedding)(past.token_positions);
  const int64_t before = *std::max_element(past.lengths.begin(), past.lengths.end());
  const int64_t count = tokens.size(1);
  if (before + count > config_.max_positions) {
    throw ShapeError(type_name(),
                     "a text of at most " + std::to_string(config_.max_positions) +
                         " tokens, one for each position of the model",
                     std::to_string(before + count) + " tokens (" + std::to_string(before) +
                         " before and " + std::to_string(count) +
                         " new); shorten it or generate fewer");
  }
  if (past.positions.defined()) return (*position_embedding)(past.positions.unsqueeze(1));
  return by_row(past.lengths,
                [&](int64_t first) { return position_embedding->rows(first, count); });
}

TransformerStack::Past TransformerStack::placed(const Tensor& tokens, const AttentionMask& mask,
                                                const Tensor& positions) const {
  check_tokens(tokens);
  const auto rotary = [](const auto& table) { return table.has_value(); };
  Past past;
  past.turns = positions.defined();
  if (past.turns) {
    if (!position_embedding && std::none_of(tables_.begin(), tables_.end(), rotary)) {
      throw ValueError(type_name(),
                       "a model with learnt or rotary positions, for positions by call", "neither");
    }
    check_positions(type_name(), positions, tokens);
    past.token_positions = positions;
    return past;
  }
  int64_t longest = tokens.size(1);  // text for which all frequencies are the same
  for (size_t i = 0; i < tables_.size(); ++i) {
    if (!tables_[i] || !tables_[i]->depends_on_length()) continue;
    const RotaryScaling& scaling = config_.attention[i].rotary->scaling;
    const bool grows = scaling.kind == RotaryScalingKind::dynamic_ntk;
    if (!grows && scaling.short_factor == scaling.long_factor) continue;
    longest = std::min(longest, scaling.original_context);
  }
  if (!position_embedding && longest == tokens.size(1)) return past;
  std::vector<AttentionMask> masks;
  for (const LayerAttention& layer : config_.attention) masks.push_back(layer.mask & mask);
  past.token_positions = positions_in_texts(masks, tokens.size(1));
  if (past.token_positions.defined() && longest < tokens.size(1)) {
    throw ValueError(type_name(),
                     "positions for packed texts of more than " + std::to_string(longest) +
                         " tokens, beyond which rotary frequencies depend on the length of a text",
                     "none for " + std::to_string(tokens.size(1)));
  }
  return past;
}

RotaryAngles TransformerStack::angles_of(RotaryTable& table, const Past& past,
                                         const Tensor& x) const {
  if (past.turns) return table.angles(past.token_positions, x.dtype());
  const std::vector<int64_t>& positions = past.lengths;
  if (past.positions.defined()) {
    const int64_t last = *std::max_element(positions.begin(), positions.end());
    return table.angles(0, last + 1, x.dtype(), x.device());
  }
  const auto at = [&](int64_t first) {
    return table.angles(first, x.size(1), x.dtype(), x.device());
  };
  if (positions.size() == 1) return at(positions[0]);
  return {by_row(positions, [&](int64_t first) { return at(first).cos; }),
          by_row(positions, [&](int64_t first) { return at(first).sin; })};
}

Tensor TransformerStack::run(const Tensor& embedded, const AttentionMask& mask, const Past& past,
                             const std::vector<CrossKeys>& cross) {
  const int64_t crossed = config_.cross_attention ? config_.layers : 0;
  if (static_cast<int64_t>(cross.size()) != crossed) {
    throw ValueError(type_name(), "cross keys of " + std::to_string(crossed) + " layers",
                     std::to_string(cross.size()));
  }
  std::vector<RotaryAngles> angles;
  for (std::optional<RotaryTable>& table : tables_) {
    angles.push_back(table ? angles_of(*table, past, embedded) : RotaryAngles());
  }
  std::vector<AttentionContext> contexts;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const size_t entry = i % config_.attention.size();
    const LayerAttention& attention = config_.attention[entry];
    AttentionContext context{.mask = mask.shows_all() ? attention.mask : attention.mask & mask,
                             .angles = angles[entry],
                             .positions = past.positions};
    if (attention.rotary) context.layout = attention.rotary->layout;
    for (std::vector<KeyValueCache>* const text : past.texts) {
      context.caches.push_back(&(*text)[i]);
    }
    contexts.push_back(std::move(context));
  }
  return run_blocks(blocks_, norm, embedded, contexts, cross, recompute_);
}

Tensor TransformerStack::head_of(const Tensor& states) {
  if (!head) return states;
  const Tensor x =
      head_dense ? (*head_norm)(head_activation((*head_dense)(states), config_.mlp)) : states;
  return softcapped((*head)(x), config_.logit_softcap);
}

}  // namespace sash::nn
