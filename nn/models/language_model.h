#pragma once

#include <concepts>
#include <vector>

#include "../../ops/loss/linear_cross_entropy.h"
#include "generation.h"
#include "transformer_stack.h"

namespace sash::nn {

/// A causal language model: what `Decoder` and `CausalLM` do.
class SASH_API LanguageModel : public ModuleOf<LanguageModel, TransformerStack> {
 public:
  /// Logits [B, T, vocab] of the token after each of tokens [B, T] int64. `ShapeError`,
  /// `DTypeError`, and `IndexError` for a token outside the vocabulary.
  Tensor forward(const Tensor& tokens) override;
  /// The same for tokens that continue those in `caches`, which then hold them too: the last T rows
  /// of `forward` of all tokens so far, computed for the new tokens only. Needs a `NoGradGuard`.
  /// `ValueError` unless the caches are from `new_caches` and of one length (`OutOfMemory` may
  /// leave them unequal); `ShapeError` when learnt positions are used up. Where rotary frequencies
  /// depend on the length (dynamic_ntk, longrope), keys in caches keep the frequencies of their
  /// time, so longer texts may differ from `forward` without caches.
  Tensor forward(const Tensor& tokens, std::vector<KeyValueCache>& caches);
  /// Logits under the layers' masks & `mask`, at `positions`.
  Tensor forward(const Tensor& tokens, const AttentionMask& mask, const Tensor& positions = {});
  /// The same with `cross_attention`: there is a `CrossKeys` for each layer, `Decoder::cross_keys`.
  Tensor forward(const Tensor& tokens, const std::vector<CrossKeys>& cross,
                 const AttentionMask& mask = {}, const Tensor& positions = {});
  Tensor forward(const Tensor& tokens, std::vector<KeyValueCache>& caches,
                 const std::vector<CrossKeys>& cross);
  /// Logits [B, vocab] of the token after each row of tokens [B, T], which continue the text whose
  /// caches are `caches[0]`, or row i that of `caches[i]`: so texts of different lengths are
  /// written together. The head runs for the last tokens alone. Without caches, rows are whole
  /// texts. Errors as `forward`.
  Tensor next_logits(const Tensor& tokens, const std::vector<std::vector<KeyValueCache>*>& caches);
  /// `cross_entropy` of the logits of tokens [B, T] with targets [B, T] int64, a single element,
  /// float32 for halves. The logits are not held whole, see `linear_cross_entropy`, but with a
  /// logit_softcap, a transform head, or a block-sparse head. Errors as `forward` and
  /// `cross_entropy`.
  Tensor loss(const Tensor& tokens, const Tensor& targets,
              const LinearCrossEntropyOptions& options = {}, const AttentionMask& mask = {},
              const Tensor& positions = {});
  Tensor loss(const Tensor& tokens, const std::vector<CrossKeys>& cross, const Tensor& targets,
              const LinearCrossEntropyOptions& options = {}, const AttentionMask& mask = {},
              const Tensor& positions = {});

  /// What the head gets, [B, T, dim].
  Tensor hidden(const Tensor& tokens, const std::vector<CrossKeys>& cross = {},
                const AttentionMask& mask = {}, const Tensor& positions = {});

  /// Whether caches can serve every layer: its attention is a mask with a `causal_reach`.
  bool can_cache() const;
  /// An empty cache for each layer: a ring where its mask is a window. `ValueError` unless
  /// `can_cache`.
  std::vector<KeyValueCache> new_caches() const;

  /// At most `count` tokens after `prompt`, chosen one by one in evaluation mode without recording.
  /// If `can_cache`, keys and values are cached, and a window bounds the memory; otherwise every
  /// token costs a whole forward pass. A text that grows past longrope's original_context is read
  /// again from its start. A stop token ends the result.
  /// `ValueError` for options out of range, see `TokenSampler`; `IndexError` for a token outside
  /// the vocabulary; `ShapeError` when learnt positions are used up, but for `CausalLM`, which then
  /// drops the oldest tokens (`GenerateOptions::stride`).
  std::vector<int64_t> generate(const std::vector<int64_t>& prompt, int64_t count,
                                const GenerateOptions& options = {});
  /// The same for several prompts of any lengths. Each is read by itself; then all texts get their
  /// next tokens together. The first is what it is alone.
  template <std::same_as<std::vector<int64_t>> Prompt>
  std::vector<std::vector<int64_t>> generate(const std::vector<Prompt>& prompts, int64_t count,
                                             const GenerateOptions& options = {}) {
    return generate_all(prompts, count, options);
  }

 protected:
  /// `config.attention` with `causal()` in every mask.
  static TransformerConfig causal(TransformerConfig config);

  using ModuleOf::ModuleOf;

  /// Most tokens that `generate` shows the model at once; 0: any number.
  int64_t window_ = 0;

 private:
  friend class DecodeStep;
  std::vector<std::vector<int64_t>> generate_all(const std::vector<std::vector<int64_t>>& prompts,
                                                 int64_t count, const GenerateOptions& options);
  using Texts = std::vector<std::vector<KeyValueCache>*>;

  // Why a token of each text is not computed by `attention_step`; null if it is.
  const char* step_obstacle(const Texts& texts) const;
  // `next_logits` of tokens [B, 1] whose texts' caches count them already, and whose positions are
  // read on the device.
  Tensor step_logits(const Tensor& tokens, const Tensor& positions, const Texts& texts);
};

}  // namespace sash::nn
