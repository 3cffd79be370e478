#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "../../core/export.h"

/// Encodings, properties and normal forms of characters, from the tables of Unicode.
namespace sash::text {

/// The code points of UTF-8 text. Throws `ValueError`, which names `op` and the first byte that is
/// not UTF-8.
SASH_API std::u32string from_utf8(std::string_view op, std::string_view text);
SASH_API std::string to_utf8(std::u32string_view text);
SASH_API void append_utf8(std::string& text, char32_t c);
/// Decodes bytes that may not be UTF-8. One U+FFFD replaces each incomplete character, and one each
/// byte with which no character can begin.
SASH_API std::string lossy_utf8(std::string_view bytes);
/// How many bytes at the start of `bytes` are whole characters. A program that receives a text in
/// parts can show these.
SASH_API size_t whole_utf8(std::string_view bytes);

/// Unicode's general categories, in the order of utf8proc: "Lu" is `lu`.
enum class Category : uint8_t {
  cn,
  lu,
  ll,
  lt,
  lm,
  lo,
  mn,
  mc,
  me,
  nd,
  nl,
  no,
  pc,
  pd,
  ps,
  pe,
  pi,
  pf,
  po,
  sm,
  sc,
  sk,
  so,
  zs,
  zl,
  zp,
  cc,
  cf,
  cs,
  co
};

SASH_API Category category(char32_t c);
/// The set of categories with this name, "L" or "Lu", as bits 1 << category; 0 for an unknown name.
SASH_API uint32_t category_set(std::string_view name);
inline bool is_in(char32_t c, uint32_t categories) {
  return (categories >> static_cast<int>(category(c)) & 1) != 0;
}

/// The property White_Space.
SASH_API bool is_space(char32_t c);
/// U+200C and U+200D.
inline bool is_joiner(char32_t c) { return c == 0x200c || c == 0x200d; }
/// Whether `c` is a word character: Alphabetic, marks, digits, connectors, joiners (`\w` of UTS
/// 18).
SASH_API bool is_word(char32_t c);

/// The text in lower case.
SASH_API std::u32string lower(std::u32string_view text);
/// The lower case of `c` if that is one character, else `c`: U+0130 stays.
SASH_API char32_t lower(char32_t c);
/// Canonical decomposition (NFD), and canonical composition after it (NFC).
SASH_API std::u32string nfd(std::u32string_view text);
SASH_API std::u32string nfc(std::u32string_view text);
/// Compatibility decomposition, which replaces U+FB01 by "fi" (NFKD), and composition after it
/// (NFKC).
SASH_API std::u32string nfkd(std::u32string_view text);
SASH_API std::u32string nfkc(std::u32string_view text);

}  // namespace sash::text
