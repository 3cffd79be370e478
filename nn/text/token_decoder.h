#pragma once

#include <functional>
#include <string>
#include <vector>

#include "pattern.h"

namespace sash::text {

/// Turns tokens back into text, which is what is left of them joined; named as the types of
/// `tokenizer.json`.
using TokenDecoder = std::function<std::vector<std::string>(std::vector<std::string>)>;

namespace token_decoders {

SASH_API TokenDecoder sequence(std::vector<TokenDecoder> parts);
/// The bytes that characters stand for; those that make no UTF-8 become U+FFFD.
SASH_API TokenDecoder byte_level();
/// Runs of tokens <0x..> become their characters, or U+FFFD for each byte if they are none.
SASH_API TokenDecoder byte_fallback();
/// One token of all.
SASH_API TokenDecoder fuse();
SASH_API TokenDecoder replace(const Pattern& pattern, const std::string& content);
/// Without at most `start` characters `content` at the start of each token and `stop` at its end.
/// `FormatError` if `content` is empty.
SASH_API TokenDecoder strip(const std::string& content, size_t start, size_t stop);
/// A space before each token but the first, unless it begins with `prefix`, which goes; `cleanup`:
/// none before punctuation and English contractions.
SASH_API TokenDecoder word_piece(const std::string& prefix, bool cleanup);
/// A space for each `replacement`; `prepended`: none in the first token.
SASH_API TokenDecoder metaspace(const std::string& replacement, bool prepended);

}  // namespace token_decoders
}  // namespace sash::text
