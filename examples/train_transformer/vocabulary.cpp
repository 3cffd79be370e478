#include "vocabulary.h"

#include <algorithm>
#include <charconv>

#include <sash/core/error.h>

#include "options.h"

namespace {

// 'x' or byte 200.
std::string shown(int byte) {
  if (byte >= 0x20 && byte < 0x7f) return std::string("'") + static_cast<char>(byte) + "'";
  return "byte " + std::to_string(byte);
}

}  // namespace

Vocabulary::Vocabulary(std::string bytes) : bytes_(std::move(bytes)) {
  symbol_of_byte_.fill(-1);
  for (size_t i = 0; i < bytes_.size(); ++i) {
    int64_t& symbol = symbol_of_byte_[static_cast<unsigned char>(bytes_[i])];
    if (symbol >= 0) throw sash::FormatError(kOp, "a vocabulary of distinct bytes", "one twice");
    symbol = static_cast<int64_t>(i);
  }
}

Vocabulary Vocabulary::of(const std::vector<const std::string*>& texts) {
  std::array<bool, 256> seen{};
  for (const std::string* text : texts) {
    for (const char c : *text) seen[static_cast<unsigned char>(c)] = true;
  }
  std::string bytes;
  for (size_t byte = 0; byte < seen.size(); ++byte) {
    if (seen[byte]) bytes += static_cast<char>(byte);
  }
  return Vocabulary(bytes);
}

Vocabulary Vocabulary::from_hex(const std::string& text) {
  std::string bytes;
  for (size_t at = 0; at < text.size(); at += 2) {
    const char* const end = text.data() + std::min(at + 2, text.size());
    unsigned char byte = 0;
    const auto result = std::from_chars(text.data() + at, end, byte, 16);
    if (result.ec != std::errc() || result.ptr != text.data() + at + 2) {
      throw sash::FormatError(kOp, "a vocabulary as hexadecimal digits", "something else");
    }
    bytes += static_cast<char>(byte);
  }
  if (bytes.empty()) throw sash::FormatError(kOp, "a vocabulary", "an empty one");
  return Vocabulary(bytes);
}

std::string Vocabulary::hex() const {
  std::string text;
  for (const char c : bytes_) {
    constexpr char digits[] = "0123456789abcdef";
    const auto byte = static_cast<unsigned char>(c);
    text += {digits[byte / 16], digits[byte % 16]};
  }
  return text;
}

int Vocabulary::unknown_in(const std::string& text) const {
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (symbol_of_byte_[byte] < 0) return byte;
  }
  return -1;
}

std::vector<int64_t> Vocabulary::encode(const std::string& what, const std::string& text) const {
  if (const int byte = unknown_in(text); byte >= 0) {
    throw sash::ValueError(kOp, what + " of characters that the model knows", shown(byte));
  }
  std::vector<int64_t> symbols;
  symbols.reserve(text.size());
  for (const char c : text) symbols.push_back(symbol_of_byte_[static_cast<unsigned char>(c)]);
  return symbols;
}

std::string Vocabulary::decode(const std::vector<int64_t>& symbols) const {
  std::string text;
  for (const int64_t symbol : symbols) text += bytes_.at(static_cast<size_t>(symbol));
  return text;
}
