#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "../../core/export.h"

namespace sash::nn {

/// How `generate` chooses among the logits, and when it stops. The parts apply in this order, each
/// to what the ones before left.
struct GenerateOptions {
  /// p != 1: logits of tokens that the text has are divided by p if positive, else multiplied
  /// (Keskar et al., "CTRL", 2019).
  double repetition_penalty = 1;
  double temperature = 1;  ///< divides the logits; 0 takes the likeliest token
  int64_t top_k = 0;       ///< keep the k likeliest; 0 means all
  double top_p = 1;        ///< keep the likeliest that together have at least this probability
  double min_p = 0;        ///< keep those at least this times as likely as the likeliest
  uint64_t seed = 0;       ///< of its own generator; that of `manual_seed` is not used
  /// A text ends with the first of these.
  std::vector<int64_t> stop_tokens{};
  /// Called with each new token and the number of its prompt, as soon as it is known; false ends
  /// that text.
  std::function<bool(int64_t token, int64_t prompt)> on_token{};
  /// `CausalLM` with learnt positions: tokens dropped at once, oldest first, when these are used
  /// up. The others move to new positions, which costs a whole forward pass: with 1, every token
  /// sees `context` tokens and costs a pass; with context / 2, it sees at least half and passes are
  /// rare.
  int64_t stride = 1;
  /// Blocks of `Decoder` on a card: steps are recorded once and replayed, see `DecodeStep`.
  bool capture = true;
};

/// `IndexError` of `op` for a token outside [0, vocab).
SASH_API void check_prompt(const char* op, const std::vector<int64_t>& prompt, int64_t vocab);

/// Chooses the tokens of one text.
class SASH_API TokenSampler {
 public:
  /// `prompt` is the text so far, the `number`-th of a batch. `ValueError` of `op` for an empty
  /// prompt, a count, temperature or top_k below 0, a top_p or min_p outside [0, 1], or a
  /// repetition_penalty or stride that is not positive.
  TokenSampler(const char* op, const std::vector<int64_t>& prompt, int64_t number, int64_t count,
               const GenerateOptions& options);

  /// Whether the text is complete.
  bool done() const { return done_; }
  /// Prompt and new tokens.
  const std::vector<int64_t>& text() const { return text_; }
  std::vector<int64_t> new_tokens() const;
  /// Appends the token chosen by logits [vocab]: of equal ones, the first. `ValueError` if one is
  /// NaN, or none is above -inf; `IndexError` if a penalty is asked for and the text has a token
  /// outside the vocabulary.
  void append(std::vector<double> logits);
  /// Whether the options ask for the likeliest token, whatever the text.
  bool takes_likeliest() const;
  /// Appends the likeliest token, which the caller found. `ValueError` if it is negative, which
  /// says that a logit is NaN or all logits are -inf.
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
