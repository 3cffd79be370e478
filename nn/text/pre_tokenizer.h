#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "pattern.h"

namespace sash::text {

/// A part of a text. A token lies within one piece.
struct Piece {
  std::u32string text;
  bool first = false;  ///< whether the text begins with this piece
};

/// Splits pieces into smaller ones. The functions below have the names that `tokenizer.json` uses.
using PreTokenizer = std::function<std::vector<Piece>(std::vector<Piece>)>;

/// What happens to a match at which a text is split.
enum class SplitBehavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

/// The character that represents a byte in byte-level vocabularies (Radford et al., 2019). A
/// printable character represents its own byte; characters from U+0100 on represent the other
/// bytes.
SASH_API char32_t character_of_byte(uint8_t byte);
/// The byte that `c` represents; nullopt if it represents none.
SASH_API std::optional<uint8_t> byte_of_character(char32_t c);

/// The regular expression with which GPT-2 splits texts.
SASH_API extern const char* const kGpt2Pattern;
/// The regular expression with which Llama 3 splits texts: numbers of at most three digits.
SASH_API extern const char* const kLlama3Pattern;

namespace pre_tokenizers {

/// Applies the parts in order.
SASH_API PreTokenizer sequence(std::vector<PreTokenizer> parts);
/// Splits at the matches of `pattern`. With `invert`, the text between matches is the match.
SASH_API PreTokenizer split(const Pattern& pattern, SplitBehavior behavior, bool invert = false);
/// Splits with `kGpt2Pattern` if `split` is set, then replaces each byte of the UTF-8 text by its
/// `character_of_byte`.
SASH_API PreTokenizer byte_level(bool add_prefix_space, bool split);
/// Splits at white space. Each punctuation character becomes a piece.
SASH_API PreTokenizer bert();
/// Pieces are words and runs of other characters. White space is removed.
SASH_API PreTokenizer whitespace();
/// Splits at white space only.
SASH_API PreTokenizer whitespace_split();
/// Splits numbers off; with `individual`, each digit.
SASH_API PreTokenizer digits(bool individual);
/// Splits at punctuation characters.
SASH_API PreTokenizer punctuation(SplitBehavior behavior);

/// To which pieces `metaspace` adds a leading `replacement`.
enum class Prepend { never, first, always };
/// Replaces every space by `replacement`. With `split`, a piece begins at each `replacement`.
SASH_API PreTokenizer metaspace(char32_t replacement, Prepend prepend, bool split);

}  // namespace pre_tokenizers
}  // namespace sash::text
