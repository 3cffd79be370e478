#include "encoder_decoder.h"

namespace sash::nn {
namespace {

TransformerConfig headless(TransformerConfig config) {
  config.head = HeadKind::none;
  return config;
}

TransformerConfig crossed(TransformerConfig config, int64_t encoder_dim) {
  if (config.dim != encoder_dim) {
    throw ValueError("Transformer", "an encoder and a decoder of one dim",
                     std::to_string(encoder_dim) + " and " + std::to_string(config.dim));
  }
  config.cross_attention = true;
  return config;
}

}  // namespace

Transformer::Transformer(TransformerConfig encoder_config, TransformerConfig decoder_config)
    : encoder(register_module<Encoder>("encoder", headless(std::move(encoder_config)))),
      decoder(register_module<Decoder>("decoder",
                                       crossed(std::move(decoder_config), encoder.config().dim))) {}

Tensor Transformer::forward(const Tensor& source, const Tensor& target,
                            const AttentionMask& source_mask) {
  return decoder(target, decoder.cross_keys(encoder(source, source_mask), source_mask));
}

Tensor Transformer::forward(const Tensor& target, TransformerCache& cache) {
  return decoder(target, cache.self, cache.cross);
}

Tensor Transformer::loss(const Tensor& source, const Tensor& target, const Tensor& targets,
                         const AttentionMask& source_mask,
                         const LinearCrossEntropyOptions& options) {
  return named_errors([&] {
    const auto keys = decoder.cross_keys(encoder(source, source_mask), source_mask);
    return decoder.loss(target, keys, targets, options);
  });
}

TransformerCache Transformer::new_cache(const Tensor& source, const AttentionMask& source_mask) {
  return named_errors([&]() -> TransformerCache {
    return {decoder.new_caches(), decoder.cross_keys(encoder(source, source_mask), source_mask)};
  });
}

}  // namespace sash::nn
