#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "pre_tokenizer.h"

namespace sash::text {

struct BpeTrainingOptions {
  int64_t vocab = 30'000;     ///< tokens at most: the special ones, 256 bytes, and merged ones
  int64_t min_frequency = 0;  ///< pairs that occur less often are not merged
  std::vector<std::string> special_tokens{};  ///< tokens 0, 1, ...
  std::string pattern = kGpt2Pattern;         ///< splits texts; tokens lie within a piece
};

/// Trains a byte-level BPE tokenizer, as GPT-2 and Llama 3 have (Sennrich et al., 2016), and
/// returns the text of its `tokenizer.json`, which `Tokenizer::from_json` and the library
/// `tokenizers` read. Again and again, the pair of neighbouring tokens that occurs most often
/// becomes a token. Of equally frequent pairs, the pair with the lowest left token is merged; of
/// those with the same left token, the pair with the lowest right token. `BpeTrainer` of the
/// library `tokenizers` makes the same merges.
///
/// `ValueError` for texts that are not UTF-8, special tokens that are empty or not distinct, or too
/// small a vocabulary.
SASH_API std::string train_bpe(std::span<const std::string> texts,
                               const BpeTrainingOptions& options = {});

struct WordLevelTrainingOptions {
  int64_t vocab = 30'000;                            ///< tokens at most
  int64_t min_frequency = 0;                         ///< words that occur less often are left out
  std::vector<std::string> special_tokens{"[UNK]"};  ///< tokens 0, 1, ...
  std::string unknown = "[UNK]";                     ///< the special token of words without a token
};

/// The same for a tokenizer whose tokens are whole words and runs of punctuation
/// (`pre_tokenizers::whitespace`): the most frequent ones, equally frequent ones in the order of
/// their bytes. `ValueError` also if `unknown` is not a special token.
SASH_API std::string train_word_level(std::span<const std::string> texts,
                                      const WordLevelTrainingOptions& options = {});

}  // namespace sash::text
