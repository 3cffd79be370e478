#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "../layers/embedding.h"
#include "../layers/module_list.h"
#include "block.h"

namespace sash::nn {

/// A transformer over tokens: embeddings, blocks, the norm after them and the head. `Decoder`,
/// `Encoder` and `CausalLM` are faces of it. `TransformerConfig` names its parameters.
///
/// Token i of a row stands at position i. If the masks of all layers keep packed texts apart
/// (`AttentionMask::packed`, in the configuration or by call), learnt positions count from the
/// start of each text, on the device. Rotary positions go on, since only their differences count
/// within a text. Calls may name `positions`, int64 [T] or [B, T], for both kinds: `ValueError` if
/// the model has neither, `ShapeError`, `DTypeError`, and `IndexError` for a learnt position
/// outside [0, max_positions). Where frequencies depend on the length of a text (dynamic_ntk,
/// longrope), the largest of these positions decides, which is copied to the host; a packed row
/// longer than original_context needs such positions, `ValueError` without them.
class SASH_API TransformerStack : public Module {
 public:
  const TransformerConfig& config() const { return config_; }
  /// The mask of layer i; the list in the configuration repeats.
  const AttentionMask& layer_mask(int64_t i) const { return config_.attention[entry_of(i)].mask; }
  /// Whether backward passes compute each layer again rather than keep what it saves: memory for
  /// time, see `checkpoint`. Off at first.
  void recompute_layers(bool value = true) { recompute_ = value; }

 protected:
  /// How a face makes a list of blocks other than `Block`, its last child, "layers".
  using MakeLayers = std::function<void(Module& stack)>;

  /// `ValueError` of `op` unless the configuration fits itself. With `make_layers`, dropout of the
  /// embeddings is a child "dropout".
  TransformerStack(const char* op, const TransformerConfig& config,
                   const MakeLayers& make_layers = {});

  /// The list of blocks, whose type the constructor chose.
  template <class B>
  ModuleList<B>& list() const {
    return static_cast<ModuleList<B>&>(*list_);
  }

  // The tokens that those of a call follow: one text for all rows, or one for each row.
  struct Past {
    Past() = default;
    // `ValueError` unless each text has a cache per layer of its own, for that layer's mask, all of
    // one length, and there is one text or one for each of `rows`.
    Past(const TransformerStack& stack, std::vector<std::vector<KeyValueCache>*> texts,
         int64_t rows);

    std::vector<std::vector<KeyValueCache>*> texts{};  // caches of each layer; none: no past
    std::vector<int64_t> lengths{0};
    // The position of each token, int64 [T] or [B, T]. Undefined: tokens follow the past in order.
    Tensor token_positions{};
    bool turns = false;  // whether rotary angles follow `token_positions`
    // Defined: each row is one token, for `attention_step`. The lengths, int64 on the device. The
    // caches have room for the token, and count it.
    Tensor positions{};
  };
  // Where the tokens of a call without caches stand.
  Past placed(const Tensor& tokens, const AttentionMask& mask, const Tensor& positions) const;
  Tensor embed(const Tensor& tokens, const Tensor& types, const Past& past);
  // The last hidden states; `cross` has one for each layer that attends to an encoder.
  Tensor run(const Tensor& embedded, const AttentionMask& mask, const Past& past,
             const std::vector<CrossKeys>& cross);
  void check_tokens(const Tensor& tokens) const;
  // What the head makes of hidden states: themselves without one.
  Tensor head_of(const Tensor& states);

  TransformerConfig config_;
  std::vector<std::optional<RotaryTable>> tables_;  // for each entry of config.attention
  std::vector<BlockBase*> blocks_;
  Dropout* dropout_ = nullptr;  // of the embeddings, if it is a module

 private:
  void make_head();
  void initialise();
  size_t entry_of(int64_t layer) const {
    return static_cast<size_t>(layer) % config_.attention.size();
  }
  RotaryAngles angles_of(RotaryTable& table, const Past& past, const Tensor& x) const;
  Tensor learnt_positions(const Tensor& tokens, const Past& past);

  Module* list_ = nullptr;
  bool recompute_ = false;

 public:
  Embedding& token_embedding;
  Embedding* position_embedding = nullptr;  ///< parts that the configuration leaves out are null
  Embedding* type_embedding = nullptr;
  Norm* embedding_norm = nullptr;
  Norm* norm = nullptr;
  Linear* head_dense = nullptr;
  Norm* head_norm = nullptr;
  Linear* head = nullptr;
};

}  // namespace sash::nn
