#include "quote.h"

#include <algorithm>
#include <cstdint>

namespace sash {

size_t utf8_size(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return 1;
  const size_t size = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < size) return 0;
  uint32_t value = first & (0xFFu >> (size + 1));
  for (size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
    value = value << 6 | (byte(i) & 0x3F);
  }
  const bool surrogate = value >= 0xD800 && value < 0xE000;
  const bool overlong = value < (size == 2 ? 0x80u : size == 3 ? 0x800u : 0x10000u);
  return overlong || surrogate || value > 0x10FFFF ? 0 : size;
}

size_t utf8_length(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;  // not a later byte of a character
  }));
}

std::string excerpt(std::string_view text, size_t most) {
  std::string cut;
  for (size_t at = 0; at < text.size();) {
    const size_t found = utf8_size(text.substr(at)), size = std::max<size_t>(found, 1);
    if (at + size > most) return cut + "...";
    const auto first = static_cast<unsigned char>(text[at]);
    const bool shown = found > 0 && first >= 0x20 && first != 0x7f;
    cut += shown ? text.substr(at, size) : "?";
    at += size;
  }
  return cut;
}

std::string in_quotes(std::string_view text) { return "'" + excerpt(text) + "'"; }

}  // namespace sash
