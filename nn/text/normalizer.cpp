#include "normalizer.h"

#include <utility>

#include "unicode.h"

namespace sash::text::normalizers {
namespace {

std::u32string without(std::u32string text, uint32_t categories) {
  std::erase_if(text, [categories](char32_t c) { return is_in(c, categories); });
  return text;
}

bool is_chinese(char32_t c) {
  return (c >= 0x4e00 && c <= 0x9fff) || (c >= 0x3400 && c <= 0x4dbf) ||
         (c >= 0x20000 && c <= 0x2a6df) || (c >= 0x2a700 && c <= 0x2b73f) ||
         (c >= 0x2b740 && c <= 0x2b81f) || (c >= 0x2b920 && c <= 0x2ceaf) ||
         (c >= 0xf900 && c <= 0xfaff) || (c >= 0x2f800 && c <= 0x2fa1f);
}

std::u32string cleaned(const std::u32string& text) {
  // Numbers without a character stay.
  const uint32_t other = category_set("Cc") | category_set("Cf") | category_set("Co");
  std::u32string result;
  for (const char32_t c : text) {
    const bool control = c != '\t' && c != '\n' && c != '\r' && is_in(c, other);
    if (c == 0 || c == 0xfffd || control) continue;
    result.push_back(is_space(c) ? U' ' : c);
  }
  return result;
}

std::u32string with_spaces_around_chinese(const std::u32string& text) {
  std::u32string result;
  for (const char32_t c : text) {
    if (is_chinese(c)) {
      result += {U' ', c, U' '};
    } else {
      result.push_back(c);
    }
  }
  return result;
}

}  // namespace

Normalizer sequence(std::vector<Normalizer> parts) {
  return [parts = std::move(parts)](std::u32string text) {
    const size_t before = text.size();
    for (const Normalizer& part : parts) {
      text = part(std::move(text));
      check_growth(before, text.size());
    }
    return text;
  };
}

Normalizer nfc() {
  return [](const std::u32string& text) { return text::nfc(text); };
}

Normalizer nfd() {
  return [](const std::u32string& text) { return text::nfd(text); };
}

Normalizer nfkc() {
  return [](const std::u32string& text) { return text::nfkc(text); };
}

Normalizer nfkd() {
  return [](const std::u32string& text) { return text::nfkd(text); };
}

Normalizer lowercase() {
  return [](const std::u32string& text) { return lower(text); };
}

Normalizer strip_accents() {
  return [](std::u32string text) { return without(std::move(text), category_set("M")); };
}

Normalizer strip(bool left, bool right) {
  return [left, right](const std::u32string& text) {
    size_t begin = 0, end = text.size();
    while (left && begin < end && is_space(text[begin])) ++begin;
    while (right && begin < end && is_space(text[end - 1])) --end;
    return text.substr(begin, end - begin);
  };
}

Normalizer replace(const Pattern& pattern, const std::u32string& content) {
  return [pattern, content](const std::u32string& text) { return pattern.replace(text, content); };
}

Normalizer prepend(const std::u32string& prefix) {
  return [prefix](const std::u32string& text) { return text.empty() ? text : prefix + text; };
}

Normalizer bert(bool clean_text, bool chinese_characters, bool strip_accents, bool lowercase) {
  return [=](std::u32string text) {
    if (clean_text) text = cleaned(text);
    if (chinese_characters) text = with_spaces_around_chinese(text);
    if (strip_accents) text = without(text::nfd(text), category_set("Mn"));
    return lowercase ? lower(text) : text;
  };
}

}  // namespace sash::text::normalizers
