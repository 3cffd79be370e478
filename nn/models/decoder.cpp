#include "decoder.h"

#include <algorithm>
#include <cmath>

#include "../../ops/attention/attention_recorder.h"
#include "../../ops/attention/attention_step.h"
#include "../../ops/attention/mask/text_positions.h"
#include "../../ops/checks.h"
#include "../../ops/elementwise/binary.h"
#include "../../ops/elementwise/dropout.h"
#include "../../ops/elementwise/gelu.h"
#include "../../ops/elementwise/unary.h"
#include "../../ops/loss/cross_entropy.h"
#include "../../ops/shape/concat.h"
#include "../../tensor/autograd/grad_mode.h"
#include "../../tensor/autograd/recompute.h"
#include "../../tensor/factories.h"
#include "../check.h"
#include "../init.h"
#include "positions.h"

namespace sash::nn {
namespace {

constexpr const char* kStack = "TransformerStack";

void check_tokens(const Tensor& tokens) {
  check_defined(kStack, tokens, "tokens");
  check_dtype(kStack, tokens, DType::int64);
  check_rank(kStack, tokens, 2);
}

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

// What `part` gives for the position, or of several the batch of these.
template <class Part>
Tensor by_row(const std::vector<int64_t>& positions, const Part& part) {
  if (positions.size() == 1) return part(positions[0]);
  std::vector<Tensor> rows;
  for (const int64_t position : positions) rows.push_back(part(position));
  return stack(rows, 0);
}

// Of a transform head: its MLPs' where these have no gate, else GELU.
Tensor head_activation(const Tensor& x, MlpKind mlp) {
  if (mlp == MlpKind::relu) return relu(x);
  return gelu(x, mlp == MlpKind::gelu_tanh ? GeluApproximation::tanh : GeluApproximation::none);
}

Tensor softcapped(const Tensor& x, double c) { return c > 0 ? tanh(x * (1 / c)) * c : x; }

}  // namespace

TransformerStack::TransformerStack(const DecoderConfig& config)
    : config_(checked(config)),
      token_embedding(register_module<Embedding>("token_embedding", config.vocab, config.dim,
                                                 EmbeddingOptions{.draw = config.draw_weights})),
      position_embedding(
          config.max_positions > 0
              ? &register_module<Embedding>("position_embedding", config.max_positions, config.dim,
                                            EmbeddingOptions{.draw = config.draw_weights})
              : nullptr),
      type_embedding(config.token_types > 0 ? &register_module<Embedding>(
                                                  "type_embedding", config.token_types, config.dim,
                                                  EmbeddingOptions{.draw = config.draw_weights})
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
  if (config_.draw_weights) initialise();
  config_.draw_weights = true;
}

void TransformerStack::make_head() {
  if (config_.head == HeadKind::none) return;
  if (config_.head == HeadKind::transform) {
    head_dense = &register_module<Linear>(
        "head_dense", config_.dim, config_.dim,
        LinearOptions{.bias = config_.head_dense_bias, .draw = config_.draw_weights});
    head_norm = &register_module<DecoderNorm>("head_norm", config_);
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

TransformerStack::Past::Past(const std::string& op, const TransformerStack& stack,
                             std::vector<std::vector<KeyValueCache>*> given, int64_t rows)
    : texts(std::move(given)) {
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
  if (position_embedding && past.token_positions.defined()) {
    x = x + (*position_embedding)(past.token_positions);
  } else if (position_embedding) {
    check_room(kStack, config_.max_positions,
               *std::max_element(past.lengths.begin(), past.lengths.end()), tokens);
    if (past.positions.defined()) {
      x = x + (*position_embedding)(past.positions.unsqueeze(1));
    } else {
      x = x + by_row(past.lengths, [&](int64_t first) {
            return position_embedding->rows(first, tokens.size(1));
          });
    }
  }
  if (embedding_norm) x = (*embedding_norm)(x);
  return dropout(x, is_training() ? config_.dropout : 0);
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

// Layers with hooks are called as such, and normalise their input themselves.
DecoderNorm* TransformerStack::norm_before(int64_t layer) const {
  return layers[layer].has_forward_hooks() ? nullptr : layers[layer].attn_norm;
}

SumAndNorm TransformerStack::run_layer(int64_t i, const SumAndNorm& x,
                                       const AttentionContext& context, const CrossKeys& keys) {
  DecoderNorm* const next = i + 1 < config_.layers ? norm_before(i + 1) : norm;
  if (!layers[i].has_forward_hooks()) return layers[i](x, context, keys, next);
  const Tensor y = layers[i](x.sum, context, keys);
  return {y, next ? (*next)(y) : y};
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
  SumAndNorm x{embedded, {}};
  if (!past.positions.defined()) x.norm = norm_before(0) ? (*norm_before(0))(embedded) : embedded;
  for (int64_t i = 0; i < config_.layers; ++i) {
    const auto at = static_cast<size_t>(i);
    const LayerAttention& attention = attention_of(i);
    AttentionContext context{.mask = mask.shows_all() ? attention.mask : attention.mask & mask,
                             .angles = angles[entry_of(i)],
                             .positions = past.positions};
    if (attention.rotary) context.layout = attention.rotary->layout;
    for (std::vector<KeyValueCache>* const text : past.texts) {
      context.caches.push_back(&(*text)[at]);
    }
    const CrossKeys keys = cross.empty() ? CrossKeys() : cross[at];
    if (!recompute_ || !grad_enabled()) {
      x = run_layer(i, x, context, keys);
      continue;
    }
    const std::vector<Tensor> y = checkpoint(
        [this, i, context, keys](const std::vector<Tensor>& inputs) -> std::vector<Tensor> {
          const SumAndNorm result = run_layer(i, {inputs[0], inputs[1]}, context, keys);
          return {result.sum, result.norm};
        },
        {x.sum, x.norm});
    x = {y[0], y[1]};
  }
  return x.norm.defined() ? x.norm : norm ? (*norm)(x.sum) : x.sum;
}

Tensor TransformerStack::head_of(const Tensor& states) {
  if (!head) return states;
  const Tensor x =
      head_dense ? (*head_norm)(head_activation((*head_dense)(states), config_.mlp)) : states;
  return softcapped((*head)(x), config_.logit_softcap);
}

Decoder::Decoder(const DecoderConfig& config) : TransformerStack(causal(config)) {}

Tensor Decoder::hidden(const Tensor& tokens, const std::vector<CrossKeys>& cross,
                       const AttentionMask& mask, const Tensor& positions) {
  const Past past = placed(tokens, mask, positions);
  return run(embed(tokens, {}, past), mask, past, cross);
}

Tensor Decoder::forward(const Tensor& tokens) { return head_of(hidden(tokens)); }

Tensor Decoder::forward(const Tensor& tokens, std::vector<KeyValueCache>& caches) {
  return forward(tokens, caches, {});
}

Tensor Decoder::forward(const Tensor& tokens, const AttentionMask& mask, const Tensor& positions) {
  return head_of(hidden(tokens, {}, mask, positions));
}

Tensor Decoder::forward(const Tensor& tokens, const std::vector<CrossKeys>& cross,
                        const AttentionMask& mask, const Tensor& positions) {
  return head_of(hidden(tokens, cross, mask, positions));
}

Tensor Decoder::forward(const Tensor& tokens, std::vector<KeyValueCache>& caches,
                        const std::vector<CrossKeys>& cross) {
  const Past past("Decoder", *this, {&caches}, tokens.size(0));
  return head_of(run(embed(tokens, {}, past), {}, past, cross));
}

std::vector<CrossKeys> Decoder::cross_keys(const Tensor& states, const AttentionMask& mask) {
  if (!config_.cross_attention) {
    throw ValueError("Decoder.cross_keys", "a decoder with cross_attention", "one without");
  }
  std::vector<CrossKeys> keys;
  for (DecoderLayer& layer : layers) keys.push_back(layer.cross_attn->cross_keys(states, mask));
  return keys;
}

Tensor Decoder::next_logits(const Tensor& tokens,
                            const std::vector<std::vector<KeyValueCache>*>& caches) {
  return named_errors([&] {
    check_tokens(tokens);
    const Past past("Decoder", *this, caches, tokens.size(0));
    if (tokens.size(1) == 1 && !step_obstacle(caches)) {
      for (std::vector<KeyValueCache>* const text : caches) {
        for (KeyValueCache& cache : *text) cache.extend();
      }
      const auto texts = static_cast<int64_t>(caches.size());
      return step_logits(tokens, tensor(past.lengths, {texts}, {.device = tokens.device()}),
                         caches);
    }
    const Tensor states = run(embed(tokens, {}, past), {}, past, {});
    return head_of(states.select(1, -1));
  });
}

const char* Decoder::step_obstacle(const Texts& texts) const {
  if (grad_enabled()) return "gradients are recorded";
  if (AttentionRecorder::active()) return "attention's weights are recorded";
  for (const std::vector<KeyValueCache>* const text : texts) {
    for (const KeyValueCache& cache : *text) {
      if (!cache.reach().exact) return "a mask shows only some of the tokens it reaches";
      if (!cache.keys().defined()) return "a text has no tokens yet";
      if (has_attention_step_kernel(cache.keys())) continue;
      return "there is no kernel for attention of one token with such heads on this device";
    }
  }
  const bool by_length = std::any_of(
      tables_.begin(), tables_.end(),
      [](const std::optional<RotaryTable>& table) { return table && table->depends_on_length(); });
  return by_length ? "rotary frequencies depend on the length of the text" : nullptr;
}

Tensor Decoder::step_logits(const Tensor& tokens, const Tensor& positions, const Texts& texts) {
  Past past("Decoder", *this, texts, tokens.size(0));
  for (int64_t& length : past.lengths) --length;
  past.positions = positions;
  return head_of(run(embed(tokens, {}, past), {}, past, {}).select(1, -1));
}

Tensor Decoder::loss(const Tensor& tokens, const Tensor& targets,
                     const LinearCrossEntropyOptions& options, const AttentionMask& mask,
                     const Tensor& positions) {
  return loss(tokens, {}, targets, options, mask, positions);
}

Tensor Decoder::loss(const Tensor& tokens, const std::vector<CrossKeys>& cross,
                     const Tensor& targets, const LinearCrossEntropyOptions& options,
                     const AttentionMask& mask, const Tensor& positions) {
  return named_errors([&] {
    if (!head) throw ValueError("Decoder", "a head for a loss", "none");
    const Tensor x = hidden(tokens, cross, mask, positions);
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

Tensor Encoder::hidden(const Tensor& tokens, const AttentionMask& mask, const Tensor& types,
                       const Tensor& positions) {
  const Past past = placed(tokens, mask, positions);
  return run(embed(tokens, types, past), mask, past, {});
}

Tensor Encoder::forward(const Tensor& tokens, const AttentionMask& mask, const Tensor& types,
                        const Tensor& positions) {
  return head_of(hidden(tokens, mask, types, positions));
}

}  // namespace sash::nn
