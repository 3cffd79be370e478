#pragma once

#include <vector>

#include "../../ops/loss/linear_cross_entropy.h"
#include "../layers/embedding.h"
#include "../layers/module_list.h"
#include "decoder_layer.h"
#include "generation.h"

namespace sash::nn {

/// What `Decoder` and `Encoder` share: embeddings, layers, the norm after them and the head. Its
/// parameters are named in `DecoderConfig`.
///
/// Token i of a row stands at position i. If the masks of all layers keep packed texts apart
/// (`AttentionMask::packed`, in the configuration or by call), learnt positions count from the
/// start of each text, on the device; rotary ones go on, since only their differences count within
/// a text. Calls may name `positions`, int64 [T] or [B, T], for both kinds: `ValueError` if the
/// model has neither, `ShapeError`, `DTypeError`, and `IndexError` for a learnt one outside [0,
/// max_positions). Where frequencies depend on the length of a text (dynamic_ntk, longrope), the
/// largest of these positions decides, which is copied to the host; a packed row longer than
/// original_context needs such positions, `ValueError` without them.
class SASH_API TransformerStack : public Module {
 public:
  const DecoderConfig& config() const { return config_; }
  /// The mask of layer i, of all layers in turn.
  const AttentionMask& layer_mask(int64_t i) const { return attention_of(i).mask; }
  /// Whether backward passes compute each layer again rather than keep what it saves: memory for
  /// time, see `checkpoint`. Not at first.
  void recompute_layers(bool value = true) { recompute_ = value; }

 protected:
  /// `ValueError` unless the configuration fits itself.
  explicit TransformerStack(const DecoderConfig& config);

  void make_head();
  void initialise();
  const LayerAttention& attention_of(int64_t layer) const;
  size_t entry_of(int64_t layer) const;
  // The tokens that those of a call follow: of all rows one text, or one for each row.
  struct Past {
    Past() = default;
    // `ValueError` of `op` unless each text has a cache per layer of its own, for that layer's
    // mask, all of one length, and there is one text or one for each of `rows`.
    Past(const std::string& op, const TransformerStack& stack,
         std::vector<std::vector<KeyValueCache>*> texts, int64_t rows);

    std::vector<std::vector<KeyValueCache>*> texts{};  // caches of each layer; none: no past
    std::vector<int64_t> lengths{0};
    // The position of each token, int64 [T] or [B, T]. Undefined: tokens follow the past in order.
    Tensor token_positions{};
    bool turns = false;  // whether rotary angles follow `token_positions`
    // Of one token a row by `attention_step`: the lengths as int64 on the device. The caches have
    // room for the token, and count it.
    Tensor positions{};
  };
  // Where the tokens of a call without caches stand.
  Past placed(const Tensor& tokens, const AttentionMask& mask, const Tensor& positions) const;
  RotaryAngles angles_of(RotaryTable& table, const Past& past, const Tensor& x) const;
  Tensor embed(const Tensor& tokens, const Tensor& types, const Past& past);
  DecoderNorm* norm_before(int64_t layer) const;
  SumAndNorm run_layer(int64_t i, const SumAndNorm& x, const AttentionContext& context,
                       const CrossKeys& keys);
  // The last hidden states; `cross` has one for each layer that attends to an encoder.
  Tensor run(const Tensor& embedded, const AttentionMask& mask, const Past& past,
             const std::vector<CrossKeys>& cross);
  // What the head makes of hidden states: themselves without one.
  Tensor head_of(const Tensor& states);

  DecoderConfig config_;
  std::vector<std::optional<RotaryTable>> tables_;  // for each entry of config.attention
  bool recompute_ = false;

 public:
  Embedding& token_embedding;
  Embedding* position_embedding = nullptr;  ///< these are null if the configuration has none
  Embedding* type_embedding = nullptr;
  DecoderNorm* embedding_norm = nullptr;
  ModuleList<DecoderLayer>& layers;
  DecoderNorm* norm = nullptr;
  Linear* head_dense = nullptr;
  DecoderNorm* head_norm = nullptr;
  Linear* head = nullptr;
};

/// A causal language model of any of the families in `DecoderConfig`.
class SASH_API Decoder : public TransformerStack {
 public:
  /// Masks are combined with `AttentionMask::causal()`. `ValueError` unless the extents are
  /// positive and fit each other.
  explicit Decoder(const DecoderConfig& config);

  /// Logits [B, T, vocab] of the token after each of tokens [B, T] int64. `ShapeError`,
  /// `DTypeError`, and `IndexError` for a token outside the vocabulary.
  Tensor forward(const Tensor& tokens) override;
  /// The same for tokens that continue those in `caches`, which then hold them too. Needs a
  /// `NoGradGuard`. `ValueError` unless the caches are from `new_caches` and of one length. Where
  /// rotary frequencies depend on the length (dynamic_ntk, longrope), keys in caches keep those of
  /// their time, so longer texts may differ from `forward` without caches.
  Tensor forward(const Tensor& tokens, std::vector<KeyValueCache>& caches);
  /// The first under the layers' masks & `mask`, at `positions`.
  Tensor forward(const Tensor& tokens, const AttentionMask& mask, const Tensor& positions = {});
  /// The first two with `cross_attention`, for which there is a `CrossKeys` in each layer:
  /// `cross_keys`.
  Tensor forward(const Tensor& tokens, const std::vector<CrossKeys>& cross,
                 const AttentionMask& mask = {}, const Tensor& positions = {});
  Tensor forward(const Tensor& tokens, std::vector<KeyValueCache>& caches,
                 const std::vector<CrossKeys>& cross);
  /// What the layers' cross attention reads of an encoder's states [B, S, dim], under `mask`.
  /// `ValueError` without `cross_attention`.
  std::vector<CrossKeys> cross_keys(const Tensor& states, const AttentionMask& mask = {});
  /// Logits [B, vocab] of the token after each row of tokens [B, T], which continue the text whose
  /// caches are `caches[0]`, or row i that of `caches[i]`: so texts of different lengths are
  /// written together. The head runs for the last tokens alone. Errors as `forward`.
  Tensor next_logits(const Tensor& tokens, const std::vector<std::vector<KeyValueCache>*>& caches);
  /// `cross_entropy` of the logits of tokens [B, T] with targets [B, T] int64: see
  /// `linear_cross_entropy`. With a logit_softcap, or a block-sparse head, the logits are held.
  Tensor loss(const Tensor& tokens, const Tensor& targets,
              const LinearCrossEntropyOptions& options = {}, const AttentionMask& mask = {},
              const Tensor& positions = {});
  Tensor loss(const Tensor& tokens, const std::vector<CrossKeys>& cross, const Tensor& targets,
              const LinearCrossEntropyOptions& options = {}, const AttentionMask& mask = {},
              const Tensor& positions = {});
  template <class... Args>
  Tensor operator()(Args&&... args) {
    return call([&] { return forward(std::forward<Args>(args)...); }, args...);
  }

  /// What the head gets, [B, T, dim].
  Tensor hidden(const Tensor& tokens, const std::vector<CrossKeys>& cross = {},
                const AttentionMask& mask = {}, const Tensor& positions = {});

  /// Whether every layer's mask has a `causal_reach`.
  bool can_cache() const;
  /// An empty cache for each layer: a ring where its mask is a window. `ValueError` unless
  /// `can_cache`.
  std::vector<KeyValueCache> new_caches() const;

  /// At most `count` tokens after `prompt`, chosen one by one in evaluation mode without recording.
  /// Keys and values are cached: a window bounds the memory. A text that grows past longrope's
  /// original_context is read again from its start. A stop token ends the result.
  /// `ValueError` for options out of range, see `TokenSampler`, or unless `can_cache`; `IndexError`
  /// for a token outside the vocabulary; `ShapeError` when learnt positions are used up.
  std::vector<int64_t> generate(const std::vector<int64_t>& prompt, int64_t count,
                                const GenerateOptions& options = {});
  /// The same for several prompts of any lengths. Each is read by itself; then all texts get their
  /// next tokens together. The first is what it is alone.
  std::vector<std::vector<int64_t>> generate(const std::vector<std::vector<int64_t>>& prompts,
                                             int64_t count, const GenerateOptions& options = {});

 private:
  friend class DecodeStep;
  using Texts = std::vector<std::vector<KeyValueCache>*>;

  // Why a token of each text is not computed by `attention_step`; null if it is.
  const char* step_obstacle(const Texts& texts) const;
  // `next_logits` of tokens [B, 1] whose texts' caches count them already, and whose positions are
  // read on the device.
  Tensor step_logits(const Tensor& tokens, const Tensor& positions, const Texts& texts);
};

/// A bidirectional encoder: ModernBERT, BERT.
class SASH_API Encoder : public TransformerStack {
 public:
  explicit Encoder(const DecoderConfig& config);

  /// What the head makes of `hidden`: logits [B, S, vocab], or these states without a head.
  Tensor forward(const Tensor& tokens) override { return forward(tokens, {}, {}); }
  Tensor forward(const Tensor& tokens, const AttentionMask& mask, const Tensor& types = {},
                 const Tensor& positions = {});
  /// The last states [B, S, dim] of tokens [B, S] int64 under the layers' masks & `mask`, such as
  /// `AttentionMask::key_lengths`, at `positions`. types [B, S] int64 are zeros if undefined.
  Tensor hidden(const Tensor& tokens, const AttentionMask& mask = {}, const Tensor& types = {},
                const Tensor& positions = {});
  template <class... Args>
  Tensor operator()(Args&&... args) {
    return call([&] { return forward(std::forward<Args>(args)...); }, args...);
  }
};

}  // namespace sash::nn
