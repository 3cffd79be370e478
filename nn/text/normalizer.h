#pragma once

#include <functional>
#include <string>
#include <vector>

#include "pattern.h"

namespace sash::text {

/// Rewrites a text before it is split. The functions below have the names that `tokenizer.json`
/// uses.
using Normalizer = std::function<std::u32string(std::u32string)>;

namespace normalizers {

/// Applies the parts in order. `check_growth` limits the text between them.
SASH_API Normalizer sequence(std::vector<Normalizer> parts);
SASH_API Normalizer nfc();
SASH_API Normalizer nfd();
SASH_API Normalizer nfkc();
SASH_API Normalizer nfkd();
SASH_API Normalizer lowercase();
/// Removes combining marks.
SASH_API Normalizer strip_accents();
/// Removes white space at the start (`left`) and at the end (`right`).
SASH_API Normalizer strip(bool left, bool right);
/// Replaces every match by `content`.
SASH_API Normalizer replace(const Pattern& pattern, const std::u32string& content);
/// Puts `prefix` before the text, unless the text is empty.
SASH_API Normalizer prepend(const std::u32string& prefix);
/// BERT's normaliser, whose steps can be chosen: `clean_text` removes control characters and makes
/// every white space a plain space, `chinese_characters` puts spaces around Chinese characters,
/// `strip_accents` removes accents, and `lowercase` makes the text lower case.
SASH_API Normalizer bert(bool clean_text, bool chinese_characters, bool strip_accents,
                         bool lowercase);

}  // namespace normalizers
}  // namespace sash::text
