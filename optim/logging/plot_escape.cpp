#include <cstdint>

#include "../../core/quote.h"
#include "plot.h"

namespace sash::optim::plot {
namespace {

/// Bytes of the character at the start of `text`; 0 if it is no UTF-8, or XML has it not.
size_t character_size(std::string_view text) {
  const char c = text[0];
  if (static_cast<uint8_t>(c) < 0x20) return c == '\t' || c == '\n' || c == '\r';
  if (text.starts_with("\xEF\xBF\xBE") || text.starts_with("\xEF\xBF\xBF")) return 0;
  return utf8_size(text);
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

}  // namespace sash::optim::plot
