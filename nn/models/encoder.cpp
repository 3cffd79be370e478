#include "encoder.h"

namespace sash::nn {

Encoder::Encoder(const TransformerConfig& config)
    : ModuleOf("Encoder", config), layers(list<Block>()) {}

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
