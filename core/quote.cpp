#include "quote.h"

#include <algorithm>

namespace sash {

std::string excerpt(std::string_view text, size_t most) {
  size_t end = std::min(text.size(), most);
  const auto splits_character = [&] { return (text[end] & 0xc0) == 0x80; };
  while (end > 0 && end < text.size() && splits_character()) --end;
  std::string cut(text.substr(0, end));
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  std::replace_if(cut.begin(), cut.end(), is_control, '?');
  return end < text.size() ? cut + "..." : cut;
}

std::string in_quotes(std::string_view text) { return "'" + excerpt(text) + "'"; }

}  // namespace sash
