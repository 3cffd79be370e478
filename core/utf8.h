#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace sash {

/// Bytes of the UTF-8 character at the start of a text that is not empty; 0 if its bytes are none.
inline size_t utf8_size(std::string_view text) {
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

}  // namespace sash
