#pragma once

#include <string>
#include <vector>

#include "../../tensor/graph.h"
#include "decoder.h"

namespace sash::nn {

/// Writes texts token by token with a `LanguageModel`. On a card a step is recorded once as a
/// `Graph`, and then replayed. Tokens, positions, slots of the caches and visible keys are in the
/// card's memory.
///
///     nn::DecodeStep step(model, {&caches});  // that hold the prompt
///     const Tensor& logits = step({token});
///
/// A replay has the bits of `LanguageModel::next_logits`. The first step runs eagerly, the second
/// is recorded. If a cache or a table of rotary angles has grown, the step is recorded again. Steps
/// that cannot be recorded run eagerly, and `reason` says why. Only these steps may change the
/// model and the caches.
class SASH_API DecodeStep {
 public:
  using Texts = std::vector<std::vector<KeyValueCache>*>;

  /// Texts as for `LanguageModel::next_logits`. Without `capture` all steps run eagerly.
  /// `ValueError` without a text.
  DecodeStep(LanguageModel& model, Texts texts, bool capture = true);

  /// Logits [texts, vocab] after the next token of each text, until the next call. Needs a
  /// `NoGradGuard`. Errors as `LanguageModel::next_logits`.
  const Tensor& operator()(const std::vector<int64_t>& tokens);
  /// The most likely token of each text by the last logits, the first of equal ones; -1 if a logit
  /// is NaN.
  std::vector<int64_t> likeliest();

  /// Why the last step ran eagerly; empty if it was recorded or replayed.
  const std::string& reason() const { return reason_; }
  /// The number of graphs recorded so far.
  int64_t captures() const { return captures_; }

 private:
  struct Results {
    Tensor logits;     // [texts, vocab]
    Tensor likeliest;  // int64 [texts]
  };

  const char* obstacle() const;
  void extend(const std::vector<int64_t>& tokens);
  Results run();
  bool record();
  std::vector<const void*> places() const;

  LanguageModel& model_;
  Texts texts_;
  bool capture_;
  Tensor tokens_, positions_;                          // int64 [texts, 1] and [texts] on the card
  std::vector<int64_t> next_tokens_, next_positions_;  // what they hold, as far as is known
  Results results_;
  Owned<Graph> graph_;
  std::vector<const void*> graph_places_;  // of what the graph reads and may move
  bool warm_ = false;
  std::string failure_, reason_;
  int64_t captures_ = 0;
};

}  // namespace sash::nn
