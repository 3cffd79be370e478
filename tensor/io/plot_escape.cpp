#include <cstdint>

#include "plot.h"

namespace sash::plot {
namespace {

/// Bytes of the UTF-8 character at the start of `text`; 0 if there is none, or XML has it not.
size_t character_size(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return first >= 0x20 || first == '\t' || first == '\n' || first == '\r';
  const size_t size = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < size) return 0;
  uint32_t value = first & (0xFFu >> (size + 1));
  for (size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
    value = value << 6 | (byte(i) & 0x3F);
  }
  const bool surrogate = value >= 0xD800 && value < 0xE000;
  const bool overlong = value < (size == 2 ? 0x80u : size == 3 ? 0x800u : 0x10000u);
  return overlong || surrogate || value > 0x10FFFF || (value & 0xFFFFFFFEu) == 0xFFFE ? 0 : size;
}

}  // namespace

std::string escape(std::string_view text) {
  std::string escaped;
  while (!text.empty()) {
    const size_t size = character_size(text);
    const char c = text[0];
    if (size == 0) {
      escaped += "\xEF\xBF\xBD";
    } else if (c == '&') {
      escaped += "&amp;";
    } else if (c == '<') {
      escaped += "&lt;";
    } else if (c == '>') {
      escaped += "&gt;";
    } else if (c == '"') {
      escaped += "&quot;";
    } else {
      escaped += text.substr(0, size);
    }
    text.remove_prefix(size == 0 ? 1 : size);
  }
  return escaped;
}

}  // namespace sash::plot
