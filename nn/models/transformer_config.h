#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "../../ops/attention/mask/attention_mask.h"
#include "../attention/rotary.h"

namespace sash::nn {

enum class NormKind {
  layer_norm,
  rms_norm,
  rms_norm_unit_offset,  ///< multiplies by 1 + weight (Gemma); the weight starts as zeros
};

/// Where the norms of a branch f are; f is attention or the MLP.
enum class NormPlacement {
  before,     ///< x + f(norm(x)): GPT-2, Llama, ModernBERT
  around,     ///< x + post_norm(f(norm(x))): Gemma 2 and 3
  after,      ///< x + post_norm(f(x)): OLMo 2 and 3
  after_sum,  ///< post_norm(x + f(x)): BERT, and the transformer of 2017
};

/// Whether the MLP of a layer reads the sum after attention or the input of the layer.
enum class Branches {
  sequential,
  parallel,           ///< x + attention(attn_norm(x)) + mlp(mlp_norm(x)): GPT-NeoX
  parallel_one_norm,  ///< x + attention(attn_norm(x)) + mlp(attn_norm(x)): GPT-J, Phi-2
};

enum class QKNorm {
  none,
  per_head,   ///< over the features of a head: Qwen 3, Gemma 3
  all_heads,  ///< over the heads side by side: OLMo 2 and 3
};

enum class MlpKind {
  relu,
  gelu,            ///< BERT
  gelu_tanh,       ///< GPT-2, GPT-Neo
  swiglu,          ///< silu(gate) up: Llama, Mistral, Qwen, OLMo, Phi-3
  geglu,           ///< gelu(gate) up: ModernBERT
  geglu_tanh,      ///< Gemma
  clamped_swiglu,  ///< `GluKind::clamped_swiglu`: gpt-oss
};

enum class HeadKind {
  none,    ///< the model's result is the last hidden states [B, S, dim]
  linear,  ///< logits, by a linear layer of the last hidden states: language models
  /// linear(head_norm(act(head_dense(x)))): masked language models of the BERT family; `act` is
  /// relu or gelu_tanh if the MLP's is, else gelu
  transform,
};

/// How one layer attends.
struct LayerAttention {
  /// Decoders combine it with `AttentionMask::causal()`.
  AttentionMask mask{};
  /// How queries and keys are rotated. None: they are not, if the model has other positions.
  std::optional<RotaryOptions> rotary{};
  /// How the heads attend, in the syntax of `AttentionKind::parse`: "moba:64,top_k=4". A mask is
  /// combined with `mask`. Decoders take the kinds that can be causal.
  std::string kind = "dense";
};

/// A transformer over tokens: one struct from GPT-2 to today's families. The defaults are Llama's.
///
///     GPT-2       layer_norm 1e-5 with all biases, gelu_tanh, max_positions, tied
///     GPT-Neo     the same with qkv_bias = false, scale 1, attention {causal, causal_window(w)}
///     Llama       rotary; llama3 scaling from 3.1 on
///     Mistral     rotary, attention {causal_window(w)}
///     Qwen 2, 2.5 rotary, qkv_bias
///     Qwen 3      rotary, head_dim, qk_norm per_head
///     Phi-3       rotary with longrope, attention {causal_window(w)}
///     Gemma 2     rms_norm_unit_offset, around, geglu_tanh, head_dim, scale, both softcaps, tied,
///                 embedding_scale sqrt(dim), attention {causal_window(w), causal}
///     Gemma 3     the same without softcaps, qk_norm per_head; five layers of causal_window(w)
///                 with theta 10,000 to one causal with theta 1,000,000
///     OLMo 3      after, qk_norm all_heads; three layers of causal_window(w) to one causal
///     gpt-oss     qkv_bias, out_bias, mlp_bias, clamped_swiglu, sink_logits, rotary with yarn (not
///                 truncated), attention {causal_window(w), causal}
///     ModernBERT  layer_norm 1e-5, geglu, embedding_norm, first_attn_norm = false, transform head
///                 (tied, head_bias, no head_dense_bias); one layer that sees all with theta
///                 160,000 to two of symmetric_window(w / 2) with theta 10,000
///     Qwen3-Next  of its attention: {{.kind = "gated_delta:4,..."}, the same, the same, {.rotary =
///                 RotaryOptions()}}, rms_norm_unit_offset, qk_norm per_head, head_dim
///     Kimi Linear of its attention: {{.kind = "kda"}, {.kind = "kda"}, {.kind = "kda"}, {}},
///                 no_positions
///     BERT        layer_norm 1e-12 with all biases, after_sum, gelu, max_positions, token_types,
///                 embedding_norm, final_norm = false, transform head (tied, head_bias)
///     RoBERTa     the same with 1e-5
///
/// Names of the parameters of `Decoder` and `Encoder`. A parameter in brackets exists if the
/// configuration asks for it; the `bias` of a LayerNorm needs `norm_bias`.
///
///     token_embedding.weight [vocab, dim]
///     (position_embedding.weight [max_positions, dim])
///     (type_embedding.weight [token_types, dim])
///     (embedding_norm.weight [dim], .bias)
///     layers.N.attn_norm.weight [dim], .bias            not with `after` and `after_sum`
///     layers.N.self_attn.qkv_proj.weight [(heads + 2 kv_heads) head_dim, dim], .bias    if packed
///     layers.N.self_attn.q_proj, .k_proj, .v_proj       if not packed, with .weight and .bias
///     (layers.N.self_attn.q_norm.weight, .k_norm.weight [head_dim], or [heads head_dim] and
///         [kv_heads head_dim] with all_heads)
///     (layers.N.self_attn.sink_logits [heads])
///     layers.N.self_attn.o_proj.weight [dim, heads head_dim], .bias
///     (layers.N.self_attn.sparse: `NativeSparseBranches`, of layers with the kind nsa)
///     (layers.N.self_attn.delta: `GatedDeltaNet`, alone, of the kinds gated_delta and kda)
///     (layers.N.attn_post_norm.weight [dim], .bias)     not with `before`
///     (layers.N.cross_attn_norm, .cross_attn, .cross_attn_post_norm: the same; cross_attn has
///         q_proj and, if packed, kv_proj [2 kv_heads head_dim, dim], else k_proj and v_proj)
///     layers.N.mlp_norm.weight [dim], .bias             not with `after`, `after_sum` and
///                                                       parallel_one_norm
///     layers.N.mlp.gate_up_proj.weight [2 mlp_dim, dim], .bias    gated and packed: gate above up
///     layers.N.mlp.gate_proj, .up_proj                  gated and not packed
///     layers.N.mlp.up_proj.weight [mlp_dim, dim], .bias not gated
///     layers.N.mlp.down_proj.weight [dim, mlp_dim], .bias
///     (layers.N.mlp_post_norm.weight [dim], .bias)      not with `before`
///     (norm.weight [dim], .bias)
///     (head_dense.weight [dim, dim], .bias, head_norm.weight [dim], .bias)    HeadKind::transform
///     (head.weight [vocab, dim], .bias)                 the token embedding's, if tied
struct TransformerConfig {
  int64_t vocab = 0;
  int64_t dim = 128;
  int64_t heads = 4;
  int64_t layers = 4;
  int64_t kv_heads = 0;  ///< 0 means heads
  int64_t head_dim = 0;  ///< 0 means dim / heads
  int64_t mlp_dim = 0;   ///< width of the MLP's hidden layer; 0 means 4 dim

  NormKind norm = NormKind::rms_norm;
  double norm_eps = 1e-6;
  bool norm_bias = false;  ///< whether a LayerNorm has a bias
  NormPlacement norm_placement = NormPlacement::before;
  bool first_attn_norm = true;               ///< false: layer 0 has no `attn_norm`
  bool final_norm = true;                    ///< whether there is a `norm` after the last layer
  Branches branches = Branches::sequential;  ///< parallel branches need `before`

  /// Layer i has entry i modulo the size: {local, local, full} gives every third layer full
  /// attention. Not empty.
  std::vector<LayerAttention> attention = std::vector<LayerAttention>(1);
  std::optional<double> scale{};  ///< of the scores; 1 / sqrt(head_dim) by default
  double attn_softcap = 0;        ///< c > 0: scores become c tanh(s / c)
  QKNorm qk_norm = QKNorm::none;  ///< before the rotation; RMS norms with `norm_eps`
  bool sink_logits = false;       ///< `AttentionOptions::sink_logits`
  bool qkv_bias = false;
  bool out_bias = false;  ///< of `o_proj`
  /// One product for q, k and v, and one for gate and up; false: a product for each, for LoRA.
  bool packed = true;
  bool cross_attention = false;  ///< each layer also attends to the states of an encoder

  MlpKind mlp = MlpKind::swiglu;
  bool mlp_bias = false;

  double embedding_scale = 1;  ///< rounded to the embedding's dtype, as Gemma does
  int64_t max_positions = 0;   ///< learnt positions; 0: none
  /// Without `max_positions` and without `rotary` in any layer, all layers rotate with
  /// `RotaryOptions()`. True: they do not, and only masks tell the model the order of tokens.
  bool no_positions = false;
  int64_t token_types = 0;  ///< of BERT's sentences; 0: none
  bool embedding_norm = false;

  HeadKind head = HeadKind::linear;
  bool tie_weights = false;  ///< `head` shares the weight of `token_embedding`
  bool head_bias = false;
  bool head_dense_bias = true;  ///< of `head_dense`
  double logit_softcap = 0;     ///< c > 0: logits become c tanh(logit / c)

  double dropout = 0;       ///< of embeddings and both branches, while training
  double attn_dropout = 0;  ///< of attention probabilities, while training
  double init_std = 0.02;   ///< weights start as N(0, init_std^2), biases as 0
  /// False: weights are undefined until they are loaded. `config()` of a model returns true.
  bool draw_weights = true;
};

}  // namespace sash::nn
