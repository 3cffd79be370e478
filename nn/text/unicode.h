#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "../../core/export.h"

/// What tokenizers ask about characters, by Unicode's tables.
namespace sash::text {

/// The code points of UTF-8 text. `ValueError` of `op` that names the first byte which is not.
SASH_API std::u32string from_utf8(std::string_view op, std::string_view text);
SASH_API std::string to_utf8(std::u32string_view text);
SASH_API void append_utf8(std::string& text, char32_t c);
/// The text with U+FFFD for each longest part that begins a character but does not end it, and for
/// each byte that begins none.
SASH_API std::string lossy_utf8(std::string_view bytes);
/// Bytes of the longest start of `bytes` that ends with a character: what can be shown of a text
/// that grows.
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
/// A set of categories by name, "L" or "Lu", as bits 1 << category; 0 for another name.
SASH_API uint32_t category_set(std::string_view name);
inline bool is_in(char32_t c, uint32_t categories) {
  return (categories >> static_cast<int>(category(c)) & 1) != 0;
}

/// The property White_Space.
SASH_API bool is_space(char32_t c);
/// U+200C and U+200D.
inline bool is_joiner(char32_t c) { return c == 0x200c || c == 0x200d; }
/// What may be in words: Alphabetic, marks, digits, connectors, joiners (`\w` of UTS 18).
SASH_API bool is_word(char32_t c);

/// Each character's lower case.
SASH_API std::u32string lower(std::u32string_view text);
/// One that is one character: U+0130 stays.
SASH_API char32_t lower(char32_t c);
/// Canonical decomposition, and composition after it.
SASH_API std::u32string nfd(std::u32string_view text);
SASH_API std::u32string nfc(std::u32string_view text);
/// The same with compatibility decomposition: U+FB01 becomes "fi".
SASH_API std::u32string nfkd(std::u32string_view text);
SASH_API std::u32string nfkc(std::u32string_view text);

}  // namespace sash::text
