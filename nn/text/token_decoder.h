#pragma once

#include <functional>
#include <string>
#include <vector>

#include "pattern.h"

namespace sash::text {

/// Changes tokens so that their concatenation is the text. The functions below have the names that
/// `tokenizer.json` uses.
using TokenDecoder = std::function<std::vector<std::string>(std::vector<std::string>)>;

namespace token_decoders {

/// Applies the parts in order. `check_growth` limits the bytes between them.
SASH_API TokenDecoder sequence(std::vector<TokenDecoder> parts);
/// Replaces each character by the byte that it represents (`byte_of_character`). Bytes that are not
/// UTF-8 become U+FFFD.
SASH_API TokenDecoder byte_level();
/// Replaces each run of byte tokens <0x..> by the characters of its bytes, or by one U+FFFD for
/// each byte if the bytes are not UTF-8.
SASH_API TokenDecoder byte_fallback();
/// Joins all tokens to one.
SASH_API TokenDecoder fuse();
/// Replaces every match in every token by `content`.
SASH_API TokenDecoder replace(const Pattern& pattern, const std::string& content);
/// Removes up to `start` copies of `content` from the start of each token and up to `stop` copies
/// from its end. Throws `FormatError` if `content` is empty.
SASH_API TokenDecoder strip(const std::string& content, size_t start, size_t stop);
/// From the second token on, a token that begins with `prefix` loses it and continues the word
/// before it; other tokens get a space before them. `cleanup` removes the spaces before punctuation
/// and English contractions.
SASH_API TokenDecoder word_piece(const std::string& prefix, bool cleanup);
/// Replaces each `replacement` by a space. With `prepended`, the first token loses them instead.
SASH_API TokenDecoder metaspace(const std::string& replacement, bool prepended);

}  // namespace token_decoders
}  // namespace sash::text
