#pragma once

#include <cstdint>
#include <vector>

#include "../../ops/loss/linear_cross_entropy.h"
#include "../layers/embedding.h"
#include "generation.h"
#include "transformer.h"

namespace sash::nn {

struct CausalLMOptions {
  int64_t vocab = 0;
  int64_t context = 0;  ///< most tokens the model can see at once: its learnt positions
  int64_t dim = 128;
  int64_t heads = 4;
  int64_t layers = 4;
  int64_t feedforward = 0;  ///< 0 means 4 dim
  double dropout = 0;
  bool tie_weights = false;  ///< the head shares the weight of the token embedding
  /// How the heads attend, in the syntax of `AttentionKind::parse`: a mask, or a kind that can be
  /// causal: causal_linear or top_k.
  std::string attention = "dense";
  /// Combined with `causal()` and with `attention`, if that is a mask.
  AttentionMask mask{};
  /// Combined with these too: one mask for each layer. Empty: none.
  std::vector<AttentionMask> layer_masks{};
  /// False: no learnt positions, but `alibi`, `relative_positions` or the mask; `context` is then
  /// ignored, and any length is allowed.
  bool learned_positions = true;
  /// These are explained in `MultiheadAttentionOptions`.
  int64_t kv_heads = 0;
  double softcap = 0;
  bool alibi = false;
  std::optional<int64_t> relative_positions{};
  bool sink_logits = false;
};

/// A decoder-only language model with learnt positions and pre-norm GELU layers (Radford et al.,
/// "Language models are unsupervised multitask learners", 2019).
///
/// Children: `token_embedding`, `position_embedding`, `dropout`, `layers`, `norm`, `head` (without
/// bias). Weights start as N(0, 0.02^2), those of the projections into the residual stream
/// N(0, 0.02^2 / (2 layers)); biases are 0.
class SASH_API CausalLM : public Module {
 public:
  using Options = CausalLMOptions;

  /// `ValueError` unless the extents are positive, heads divides dim, dropout lies in [0, 1],
  /// `layer_masks` is empty or one per layer, and the kind of attention can be causal; for the rest
  /// as `MultiheadAttention`.
  explicit CausalLM(const CausalLMOptions& options);

  /// Logits [B, T, vocab] of the token after each of tokens [B, T] int64. `ShapeError` for another
  /// rank or T > context, `DTypeError` unless int64, `IndexError` for a token outside the
  /// vocabulary.
  Tensor forward(const Tensor& tokens) override { return forward(tokens, AttentionMask()); }
  /// The same under the layers' masks & `mask`. Learnt positions are `positions`, int64 [T] or
  /// [B, T], or by default 0 to T - 1; but where the masks of all layers keep packed texts apart
  /// (`AttentionMask::packed`, here or in the options), they count from the start of each text, on
  /// the device, and T may exceed the context. `ValueError` for positions without learnt ones,
  /// `ShapeError`, `DTypeError`, and `IndexError` for one outside [0, context).
  Tensor forward(const Tensor& tokens, const AttentionMask& mask, const Tensor& positions = {});
  /// Logits of tokens that continue the tokens in `caches`; adds them to the caches. The result is
  /// the last T rows of `forward` of all tokens so far, computed for the new tokens only. Needs a
  /// `NoGradGuard`.
  /// `ValueError` unless there is a cache for each layer, all of one length (`OutOfMemory` may
  /// leave them unequal); `ShapeError` if the context is used up.
  Tensor forward(const Tensor& tokens, std::vector<KeyValueCache>& caches);
  /// `cross_entropy` of the logits of tokens [B, T] with targets [B, T] int64, a single element,
  /// float32 for halves. The logits are not held whole: see `linear_cross_entropy`. Errors as
  /// `forward` and `cross_entropy`.
  Tensor loss(const Tensor& tokens, const Tensor& targets,
              const LinearCrossEntropyOptions& options = {}, const AttentionMask& mask = {},
              const Tensor& positions = {});
  template <class... Args>
  Tensor operator()(Args&&... args) {
    return call([&] { return forward(std::forward<Args>(args)...); }, args...);
  }

  /// Whether attention allows caches: whether it is masks with a `causal_reach`.
  bool can_cache() const;
  /// An empty cache for each layer. `ValueError` unless `can_cache`.
  std::vector<KeyValueCache> new_caches() const;

  /// `count` tokens after `prompt`, sampled one by one in evaluation mode without recording; each
  /// sees all before it, but at most `context` of them with learnt positions (see
  /// `GenerateOptions::stride`). If `can_cache`, keys and values are cached (a windowed mask bounds
  /// the memory); otherwise every token costs a whole forward pass. The tokens are the same.
  /// `ValueError` for options out of range, see `TokenSampler`; `IndexError` for a token outside
  /// the vocabulary.
  std::vector<int64_t> generate(const std::vector<int64_t>& prompt, int64_t count,
                                const GenerateOptions& options = {});

  int64_t vocab() const { return options_.vocab; }
  int64_t context() const { return options_.context; }

 private:
  void initialise();
  // Learnt positions are `positions`; if undefined, positions within the texts that `masks` keep
  // apart; otherwise 0, 1, 2, ...
  Tensor embed(const Tensor& tokens, int64_t first_position,
               const std::vector<AttentionMask>& masks, const Tensor& positions);
  // What the head gets.
  Tensor hidden(const Tensor& tokens, const AttentionMask& mask, const Tensor& positions);

  CausalLMOptions options_;
  AttentionKind kind_;
  std::vector<AttentionMask> masks_;  // of each layer, with causal()

 public:
  Embedding& token_embedding;
  Embedding* position_embedding;  ///< null without learnt positions
  Dropout& dropout;
  ModuleList<TransformerEncoderLayer>& layers;
  LayerNorm& norm;
  Linear& head;
};

}  // namespace sash::nn
