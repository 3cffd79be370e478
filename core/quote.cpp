#include "quote.h"

#include <algorithm>

#include "utf8.h"

namespace sash {

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
