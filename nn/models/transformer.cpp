#include "transformer.h"

#include "../../ops/elementwise/binary.h"
#include "../../ops/elementwise/unary.h"
#include "../../ops/linalg/linear_gelu.h"
#include "../check.h"

namespace sash::nn {
namespace {

int64_t hidden_width(const TransformerOptions& options) {
  check_not_negative("TransformerEncoderLayer", "feedforward", options.feedforward);
  return options.feedforward ? options.feedforward : 4 * options.dim;
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
  return {.eps = options.layer_norm_eps, .bias = options.bias};
}

SumAndNorm add_and_normalise(const Tensor& branch, const Tensor& residual, Dropout& dropout,
                             LayerNorm& norm) {
  if (dropout.has_forward_hooks() || norm.has_forward_hooks()) {
    const Tensor sum = residual + dropout(branch);
    return {sum, norm(sum)};
  }
  return dropout_add_layer_norm(branch, residual, norm.weight, norm.bias,
                                dropout.is_training() ? dropout.p() : 0, norm.eps());
}

}  // namespace

TransformerEncoderLayer::TransformerEncoderLayer(const TransformerOptions& options)
    : activation_(options.activation),
      norm_first_(options.norm_first),
      self_attn(register_module<MultiheadAttention>("self_attn", options.dim, options.heads,
                                                    attention_options(options))),
      linear1(register_module<Linear>("linear1", options.dim, hidden_width(options),
                                      LinearOptions{.bias = options.bias})),
      dropout(register_module<Dropout>("dropout", options.dropout)),
      linear2(register_module<Linear>("linear2", hidden_width(options), options.dim,
                                      LinearOptions{.bias = options.bias})),
      norm1(register_module<LayerNorm>("norm1", options.dim, norm_options(options))),
      norm2(register_module<LayerNorm>("norm2", options.dim, norm_options(options))),
      dropout1(register_module<Dropout>("dropout1", options.dropout)),
      dropout2(register_module<Dropout>("dropout2", options.dropout)) {}

Tensor TransformerEncoderLayer::feed_forward(const Tensor& x) {
  const auto plain = [](const Linear& linear) {
    return !linear.is_block_sparse() && !linear.has_forward_hooks();
  };
  const bool drops = dropout.has_forward_hooks() || (dropout.is_training() && dropout.p() > 0);
  const bool fuses = activation_ == Activation::gelu && plain(linear1);
  if (fuses && !drops && plain(linear2)) {
    return gelu_mlp(x, linear1.weight, linear1.bias, linear2.weight, linear2.bias);
  }
  if (fuses) return linear2(dropout(linear_gelu(x, linear1.weight, linear1.bias)));
  const Tensor hidden = linear1(x);
  return linear2(dropout(activation_ == Activation::relu ? relu(hidden) : gelu(hidden)));
}

Tensor TransformerEncoderLayer::forward(const Tensor& x) { return forward(x, AttentionMask()); }

Tensor TransformerEncoderLayer::forward(const Tensor& x, const AttentionMask& mask) {
  return run(x, mask);
}

Tensor TransformerEncoderLayer::forward(const Tensor& x, KeyValueCache& cache) {
  return run(x, cache);
}

SumAndNorm TransformerEncoderLayer::forward(const SumAndNorm& x, const AttentionMask& mask,
                                            LayerNorm& next) {
  if (!norm_first_) {
    throw ValueError(type_name(), "norm_first for the norm of the next layer", "norms after sums");
  }
  const auto [y, normed] = add_and_normalise(self_attn(x.norm, mask), x.sum, dropout1, norm2);
  return add_and_normalise(feed_forward(normed), y, dropout2, next);
}

template <class MaskOrCache>
Tensor TransformerEncoderLayer::run(const Tensor& x, MaskOrCache& seen) {
  if (norm_first_) {
    const auto [y, normed] = add_and_normalise(self_attn(norm1(x), seen), x, dropout1, norm2);
    return y + dropout2(feed_forward(normed));
  }
  const Tensor y = add_and_normalise(self_attn(x, seen), x, dropout1, norm1).norm;
  return add_and_normalise(feed_forward(y), y, dropout2, norm2).norm;
}

std::string TransformerEncoderLayer::describe() const {
  return std::string("TransformerEncoderLayer(") +
         (activation_ == Activation::relu ? "relu" : "gelu") +
         (norm_first_ ? ", norm first)" : ")");
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
  Tensor y = x;
  for (TransformerEncoderLayer& layer : layers) y = layer(y, mask);
  return norm ? (*norm)(y) : y;
}

}  // namespace sash::nn
