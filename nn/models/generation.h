#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "../../core/export.h"

namespace sash::nn {

/// How `generate` selects tokens, and when it stops. `repetition_penalty` applies first, then
/// `temperature`, `top_k`, `top_p` and `min_p`, each to the tokens that the previous ones left.
struct GenerateOptions {
  double temperature = 1;  ///< divides the logits; 0 takes the most likely token
  int64_t top_k = 0;       ///< keep the k most likely tokens; 0 means all
  double top_p = 1;        ///< keep the most likely tokens that together have this probability
  double min_p = 0;        ///< keep tokens at least this times as likely as the most likely one
  /// p != 1: logits of tokens that the text already has are divided by p if positive, else
  /// multiplied (Keskar et al., "CTRL", 2019).
  double repetition_penalty = 1;
  /// n > 1: beam search, which draws nothing. Of each step the n likeliest texts are kept. The best
  /// text is the one with the highest log probability / length^length_penalty; the length counts
  /// new tokens. `temperature` and `seed` have no effect, and the search ends when no open text is
  /// better than n that are complete.
  int64_t beams = 1;
  double length_penalty = 1;
  uint64_t seed = 0;  ///< of the call's generator; `manual_seed` has no effect
  /// A text ends with the first of these.
  std::vector<int64_t> stop_tokens{};
  /// Called with each new token and the number of its prompt, as soon as it is known; false ends
  /// that text.
  std::function<bool(int64_t token, int64_t prompt)> on_token{};
  /// `CausalLM` with learnt positions: how many of the oldest tokens are dropped at once when the
  /// positions are used up. The other tokens then move to new positions, which costs a whole
  /// forward pass. With 1, every token sees `context` tokens and costs a pass; with context / 2, it
  /// sees at least half of them and passes are rare.
  int64_t stride = 1;
  /// Blocks of `Decoder` on a card: steps are recorded once and replayed, see `DecodeStep`.
  bool capture = true;
};

/// `IndexError` of `op` for a token outside [0, vocab).
SASH_API void check_prompt(const char* op, const std::vector<int64_t>& prompt, int64_t vocab);

/// Divides the logits of tokens that the text has by `penalty` if positive, else multiplies.
/// `IndexError` if the penalty is not 1 and a token is outside the vocabulary.
SASH_API void penalize_repetition(std::vector<double>& logits, const std::vector<int64_t>& text,
                                  double penalty);
/// `ValueError` if there is no logit, a logit is NaN, or none is above -inf.
SASH_API void check_logits(std::span<const double> logits);

/// Selects the tokens of one text.
class SASH_API TokenSampler {
 public:
  /// `prompt` is the text so far, the `number`-th of a batch. `ValueError` of `op` for an empty
  /// prompt, a count, temperature or top_k below 0, a top_p or min_p outside [0, 1], or a
  /// repetition_penalty, stride or number of beams that is not positive.
  TokenSampler(const char* op, const std::vector<int64_t>& prompt, int64_t number, int64_t count,
               const GenerateOptions& options);

  /// Whether the text is complete.
  bool done() const { return done_; }
  /// Prompt and new tokens.
  const std::vector<int64_t>& text() const { return text_; }
  std::vector<int64_t> new_tokens() const;
  /// Appends the token selected by logits [vocab]; of equal logits, the first. `ValueError` if a
  /// logit is NaN or none is above -inf; `IndexError` if there is a penalty and the text has a
  /// token outside the vocabulary.
  void append(std::vector<double> logits);
  /// Whether the options always select the most likely token.
  bool takes_likeliest() const;
  /// Appends the most likely token, which the caller computed. `ValueError` if it is negative,
  /// which means that a logit is NaN or all logits are -inf.
  void append_likeliest(int64_t token);

 private:
  void push(int64_t token);
  int64_t choose(std::vector<double>& logits) const;

  GenerateOptions options_;
  std::vector<int64_t> text_;
  int64_t prompt_length_, number_, count_;
  bool done_;
};

}  // namespace sash::nn
