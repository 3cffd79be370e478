#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "pattern.h"

namespace sash::text {

/// A part of a text that no token crosses.
struct Piece {
  std::u32string text;
  bool first = false;  ///< whether the whole text begins with it
};

/// Splits pieces further; named as the types of `tokenizer.json`.
using PreTokenizer = std::function<std::vector<Piece>(std::vector<Piece>)>;

/// What becomes of a match that splits a text.
enum class SplitBehavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

/// The character that stands for a byte in byte-level vocabularies: printable ones for themselves,
/// the others from U+0100 on (Radford et al., 2019).
SASH_API char32_t character_of_byte(uint8_t byte);
/// The byte that it stands for, or none.
SASH_API std::optional<uint8_t> byte_of_character(char32_t c);

/// The expression by which GPT-2 splits.
SASH_API extern const char* const kGpt2Pattern;

namespace pre_tokenizers {

SASH_API PreTokenizer sequence(std::vector<PreTokenizer> parts);
/// `invert`: what lies between matches counts as a match, and matches do not.
SASH_API PreTokenizer split(const Pattern& pattern, SplitBehavior behavior, bool invert = false);
/// Splits as GPT-2 does if `split`, and then replaces UTF-8 bytes by their characters.
SASH_API PreTokenizer byte_level(bool add_prefix_space, bool split);
/// Splits at white space, and makes each punctuation character a piece.
SASH_API PreTokenizer bert();
/// Words, and runs of other characters, without white space.
SASH_API PreTokenizer whitespace();
SASH_API PreTokenizer whitespace_split();
SASH_API PreTokenizer digits(bool individual);
SASH_API PreTokenizer punctuation(SplitBehavior behavior);

/// Which pieces get a leading `replacement` by `metaspace`.
enum class Prepend { never, first, always };
/// `replacement` for every space; pieces begin with it if `split`.
SASH_API PreTokenizer metaspace(char32_t replacement, Prepend prepend, bool split);

}  // namespace pre_tokenizers
}  // namespace sash::text
