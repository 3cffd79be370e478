#include "decoder.h"

namespace sash::nn {

Decoder::Decoder(const TransformerConfig& config)
    : LanguageModel("Decoder", causal(config)), layers(list<Block>()) {}

std::vector<CrossKeys> Decoder::cross_keys(const Tensor& states, const AttentionMask& mask) {
  if (!config_.cross_attention) {
    throw ValueError("Decoder.cross_keys", "a decoder with cross_attention", "one without");
  }
  std::vector<CrossKeys> keys;
  for (Block& layer : layers) keys.push_back(layer.cross_attn->cross_keys(states, mask));
  return keys;
}

}  // namespace sash::nn
