#pragma once

#include <string>
#include <vector>

#include <sash/nn/models/causal_lm.h>
#include <sash/nn/models/transformer_config.h>

/// Models that tests share, so small that a test may run many of them.
namespace sash::testing {

/// What tests choose of a small transformer. Each mask is that of a layer, in turn.
struct SmallTransformer {
  int64_t vocab = 13, dim = 16, layers = 2, heads = 4, kv_heads = 2, head_dim = 0, mlp_dim = 24;
  std::vector<AttentionMask> masks{AttentionMask()};
  bool rotary = true;
  int64_t max_positions = 0;
  double init_std = 0.5;  ///< far from uniform, so that a wrong token shows
};

/// Three layers: a window, a window with sinks, and one that sees all.
inline SmallTransformer windowed() {
  return {.layers = 3,
          .masks = {AttentionMask::causal_window(4),
                    AttentionMask::causal_window(3) | AttentionMask::sinks(2), AttentionMask()}};
}

inline nn::TransformerConfig small_config(const SmallTransformer& c = {}) {
  nn::TransformerConfig config{.vocab = c.vocab,
                               .dim = c.dim,
                               .heads = c.heads,
                               .layers = c.layers,
                               .kv_heads = c.kv_heads,
                               .head_dim = c.head_dim,
                               .mlp_dim = c.mlp_dim};
  config.attention.clear();
  for (const AttentionMask& mask : c.masks) {
    config.attention.push_back({mask, {}});
    if (c.rotary) config.attention.back().rotary.emplace();
  }
  config.max_positions = c.max_positions;
  config.init_std = c.init_std;
  return config;
}

/// What tests choose of a small `CausalLM`.
struct SmallLM {
  int64_t vocab = 11, context = 16, dim = 8, heads = 2, layers = 2;
  double dropout = 0;
  bool tie_weights = false;
  std::string attention = "dense";
};

inline nn::CausalLMOptions small_options(const SmallLM& c = {}) {
  nn::CausalLMOptions options{.vocab = c.vocab, .context = c.context, .dim = c.dim};
  options.heads = c.heads;
  options.layers = c.layers;
  options.dropout = c.dropout;
  options.tie_weights = c.tie_weights;
  options.attention = c.attention;
  return options;
}

inline nn::CausalLM small_lm(const SmallLM& c = {}) { return nn::CausalLM(small_options(c)); }

}  // namespace sash::testing
