#include "unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <vector>

#include "../../core/error.h"

namespace sash::text {
namespace {

constexpr char32_t kReplacement = 0xfffd;

// ---- UTF-8 --------------------------------------------------------------------------------------

struct Character {
  char32_t code = kReplacement;
  size_t bytes = 1;  // of the character, or of the part that begins one
  bool valid = false;
  bool cut = false;  // what is there may begin a character
};

// The character at the front of bytes, which are not empty.
Character front(std::string_view bytes) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return {first, 1, true};
  const size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4) return {};
  char32_t code = first & (0x7f >> length);
  for (size_t i = 1; i < length; ++i) {
    if (i == bytes.size()) return {kReplacement, i, false, true};
    // No character is longer than it must be, a surrogate, or beyond U+10FFFF.
    const uint8_t least = i > 1 ? 0x80 : first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    const uint8_t most = i > 1 ? 0xbf : first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    if (byte(i) < least || byte(i) > most) return {kReplacement, i};
    code = code << 6 | (byte(i) & 0x3f);
  }
  return {code, length, true};
}

// ---- normal forms -------------------------------------------------------------------------------

using Codes = std::vector<utf8proc_int32_t>;

// The decomposition of each character; combining marks in canonical order.
Codes decomposed(std::u32string_view text, int options) {
  constexpr utf8proc_ssize_t kLongest = 32;  // U+FDFA has 18 parts
  Codes codes;
  codes.reserve(text.size());
  for (const char32_t c : text) {
    std::array<utf8proc_int32_t, kLongest> parts{static_cast<utf8proc_int32_t>(c)};
    int boundary = 0;
    utf8proc_ssize_t count = 1;
    if (c > 0x10ffff) {
      parts[0] = kReplacement;
    } else if (c >= 0x80) {
      count = utf8proc_decompose_char(parts[0], parts.data(), kLongest,
                                      static_cast<utf8proc_option_t>(options), &boundary);
    }
    codes.insert(codes.end(), parts.begin(), parts.begin() + count);
  }
  const auto rank = [](utf8proc_int32_t c) {
    return c < 0x300 ? 0 : utf8proc_get_property(c)->combining_class;
  };
  const auto is_mark = [&](utf8proc_int32_t c) { return rank(c) != 0; };
  for (auto at = codes.begin(); at != codes.end();) {
    at = std::find_if(at, codes.end(), is_mark);
    const auto end = std::find_if_not(at, codes.end(), is_mark);
    std::stable_sort(at, end, [&](auto a, auto b) { return rank(a) < rank(b); });
    at = end;
  }
  return codes;
}

std::u32string composed(std::u32string_view text, int options) {
  Codes codes = decomposed(text, options);
  const auto form = static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE);
  const auto size = static_cast<utf8proc_ssize_t>(codes.size());
  return {codes.begin(), codes.begin() + utf8proc_normalize_utf32(codes.data(), size, form)};
}

}  // namespace

std::u32string from_utf8(std::string_view op, std::string_view text) {
  std::u32string codes;
  codes.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const Character c = front(text.substr(at));
    if (!c.valid) {
      throw ValueError(
          op, "UTF-8 text",
          "byte " + std::to_string(static_cast<uint8_t>(text[at])) + " at " + std::to_string(at));
    }
    codes.push_back(c.code);
    at += c.bytes;
  }
  return codes;
}

void append_utf8(std::string& text, char32_t c) {
  const auto push = [&text](char32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (c < 0x80) return push(c);
  if (c < 0x800) {
    push(0xc0 | c >> 6);
  } else if (c < 0x10000) {
    push(0xe0 | c >> 12);
    push(0x80 | (c >> 6 & 0x3f));
  } else {
    push(0xf0 | c >> 18);
    push(0x80 | (c >> 12 & 0x3f));
    push(0x80 | (c >> 6 & 0x3f));
  }
  push(0x80 | (c & 0x3f));
}

std::string to_utf8(std::u32string_view text) {
  std::string bytes;
  bytes.reserve(text.size());
  for (const char32_t c : text) append_utf8(bytes, c);
  return bytes;
}

std::string lossy_utf8(std::string_view bytes) {
  std::string text;
  for (size_t at = 0; at < bytes.size();) {
    const Character c = front(bytes.substr(at));
    append_utf8(text, c.code);
    at += c.bytes;
  }
  return text;
}

size_t whole_utf8(std::string_view bytes) {
  // A character that is cut off has at most three bytes.
  for (size_t at = bytes.size() - std::min<size_t>(bytes.size(), 3); at < bytes.size();) {
    const Character c = front(bytes.substr(at));
    if (c.cut) return at;
    at += c.bytes;
  }
  return bytes.size();
}

// ---- properties ---------------------------------------------------------------------------------

Category category(char32_t c) {
  return static_cast<Category>(utf8proc_category(static_cast<utf8proc_int32_t>(c)));
}

uint32_t category_set(std::string_view name) {
  static constexpr std::string_view names =
      "Cn Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cs Co ";
  uint32_t set = 0;
  if (name.empty() || name.size() > 2) return 0;
  for (size_t i = 0; 3 * i < names.size(); ++i) {
    if (names.substr(3 * i, name.size()) == name) set |= uint32_t{1} << i;
  }
  return set;
}

bool is_space(char32_t c) {
  return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

bool is_word(char32_t c) {
  static const uint32_t set = category_set("L") | category_set("M") | category_set("Nd") |
                              category_set("Nl") | category_set("Pc");
  const bool enclosed = (c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) ||
                        (c >= 0x1f150 && c <= 0x1f169) || (c >= 0x1f170 && c <= 0x1f189);
  return is_in(c, set) || enclosed || is_joiner(c);  // enclosed letters are Other_Alphabetic
}

char32_t lower(char32_t c) {
  return c == 0x130 ? c : static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)));
}

std::u32string lower(std::u32string_view text) {
  std::u32string result;
  for (const char32_t c : text) {
    if (c == 0x130) {
      result += U"i\u0307";
    } else {
      result.push_back(lower(c));
    }
  }
  return result;
}

std::u32string nfd(std::u32string_view text) {
  const Codes codes = decomposed(text, UTF8PROC_DECOMPOSE);
  return {codes.begin(), codes.end()};
}

std::u32string nfc(std::u32string_view text) {
  const bool plain = std::all_of(text.begin(), text.end(), [](char32_t c) { return c < 0x300; });
  return plain ? std::u32string(text) : composed(text, UTF8PROC_DECOMPOSE);
}

std::u32string nfkd(std::u32string_view text) {
  const Codes codes = decomposed(text, UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT);
  return {codes.begin(), codes.end()};
}

std::u32string nfkc(std::u32string_view text) {
  return composed(text, UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT);
}

}  // namespace sash::text
