#pragma once

#include "decoder.h"

namespace sash::nn {

/// What a `Transformer` keeps of a source and of the target so far.
struct TransformerCache {
  std::vector<KeyValueCache> self{};  ///< of the target's tokens, one for each layer
  std::vector<CrossKeys> cross{};     ///< of the source, computed once

  /// Row i of the target becomes row `rows[i]`, see `KeyValueCache::reorder`, and attends to that
  /// row's source. `ValueError` if a mask hides parts of the sources.
  SASH_API void reorder(const std::vector<int64_t>& rows);
};

/// An encoder, and a decoder that attends to its states: from a source text to a target text
/// (Vaswani et al., "Attention is all you need", 2017).
///
/// Children: `encoder`, an `Encoder` without a head, and `decoder`, a `Decoder` with cross
/// attention.
class SASH_API Transformer : public ModuleOf<Transformer> {
 public:
  /// `head` of the encoder and `cross_attention` of the decoder are set. `ValueError` as
  /// `Encoder` and `Decoder`, and unless both have one dim.
  Transformer(TransformerConfig encoder, TransformerConfig decoder);

  /// Logits [B, T, vocab] of the token after each of target [B, T] int64, given source [B, S]
  /// int64, of which `source_mask` shows part, such as `AttentionMask::key_lengths`.
  Tensor forward(const Tensor& source, const Tensor& target, const AttentionMask& source_mask = {});
  /// The same of a target that continues that in the cache. Needs a `NoGradGuard`.
  Tensor forward(const Tensor& target, TransformerCache& cache);
  using Module::forward;
  /// `cross_entropy` of these logits with targets [B, T] int64.
  Tensor loss(const Tensor& source, const Tensor& target, const Tensor& targets,
              const AttentionMask& source_mask = {}, const LinearCrossEntropyOptions& options = {});

  /// Runs the encoder, and starts an empty target.
  TransformerCache new_cache(const Tensor& source, const AttentionMask& source_mask = {});

  /// At most `count` tokens of a target that starts with `prompt`, such as a token that marks the
  /// start, chosen as `GenerateOptions` say. In evaluation mode, without recording; keys and values
  /// are cached. Errors as `LanguageModel::generate`, and `ValueError` for an empty source or a
  /// decoder without caches (`LanguageModel::can_cache`).
  std::vector<int64_t> generate(const std::vector<int64_t>& source,
                                const std::vector<int64_t>& prompt, int64_t count,
                                const GenerateOptions& options = {});

  Encoder& encoder;
  Decoder& decoder;
};

}  // namespace sash::nn
