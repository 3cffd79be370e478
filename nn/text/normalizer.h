#pragma once

#include <functional>
#include <string>
#include <vector>

#include "pattern.h"

namespace sash::text {

/// Rewrites a text before it is split; named as the types of `tokenizer.json`.
using Normalizer = std::function<std::u32string(std::u32string)>;

namespace normalizers {

SASH_API Normalizer sequence(std::vector<Normalizer> parts);
SASH_API Normalizer nfc();
SASH_API Normalizer nfd();
SASH_API Normalizer nfkc();
SASH_API Normalizer nfkd();
SASH_API Normalizer lowercase();
/// Without combining marks.
SASH_API Normalizer strip_accents();
SASH_API Normalizer strip(bool left, bool right);
SASH_API Normalizer replace(const Pattern& pattern, const std::u32string& content);
/// `prefix` before any text that is not empty.
SASH_API Normalizer prepend(const std::u32string& prefix);
/// BERT's: without control characters and with one kind of space (`clean_text`), spaces around
/// Chinese characters, without accents, in lower case.
SASH_API Normalizer bert(bool clean_text, bool chinese_characters, bool strip_accents,
                         bool lowercase);

}  // namespace normalizers
}  // namespace sash::text
