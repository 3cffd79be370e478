#include "encoder_decoder.h"

#include "../../ops/index/gather.h"
#include "../../tensor/autograd/grad_mode.h"
#include "../../tensor/factories.h"
#include "../eval_guard.h"
#include "beam_search.h"

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

void TransformerCache::reorder(const std::vector<int64_t>& rows) {
  for (KeyValueCache& cache : self) cache.reorder(rows);
  for (CrossKeys& keys : cross) {
    if (!keys.mask.shows_all()) {
      throw ValueError("TransformerCache.reorder", "a source without a mask",
                       keys.mask.to_string());
    }
    const Tensor index =
        tensor(rows, {static_cast<int64_t>(rows.size())}, {.device = keys.k.device()});
    keys.k = index_select(keys.k, 0, index);
    keys.v = index_select(keys.v, 0, index);
  }
}

std::vector<int64_t> Transformer::generate(const std::vector<int64_t>& source,
                                           const std::vector<int64_t>& prompt, int64_t count,
                                           const GenerateOptions& options) {
  const NoGradGuard no_grad;
  const EvalGuard eval(*this);
  constexpr const char* kGenerate = "Transformer.generate";
  if (source.empty()) throw ValueError(kGenerate, "a source of at least one token", "none");
  check_prompt(kGenerate, source, encoder.config().vocab);
  check_prompt(kGenerate, prompt, decoder.config().vocab);
  TokenSampler sampler(kGenerate, prompt, 0, count, options);
  const Device device = decoder.token_embedding.weight.device();
  TransformerCache cache = new_cache(newest_tokens({source}, true, device));
  const auto next = [&](const BeamModel::Texts& texts) {
    return forward(newest_tokens(texts, cache.self[0].length() == 0, device), cache).select(1, -1);
  };
  if (options.beams > 1) {
    // All rows have one source, so its keys change with the number of rows alone.
    const auto reorder = [&](const std::vector<int64_t>& from) {
      if (cache.cross[0].k.size(0) != static_cast<int64_t>(from.size())) return cache.reorder(from);
      for (KeyValueCache& keys : cache.self) keys.reorder(from);
    };
    return beam_search(kGenerate, prompt, count, options, {next, reorder});
  }
  while (!sampler.done()) sampler.append(next({sampler.text()}).to_vector<double>());
  return sampler.new_tokens();
}

TransformerCache Transformer::new_cache(const Tensor& source, const AttentionMask& source_mask) {
  return named_errors([&]() -> TransformerCache {
    return {decoder.new_caches(), decoder.cross_keys(encoder(source, source_mask), source_mask)};
  });
}

}  // namespace sash::nn
