#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "normalizer.h"

namespace sash::text {

/// A token that the tokenizer finds in the text first, before it normalises or splits the text.
struct AddedToken {
  std::string content{};
  int64_t id = 0;
  bool special = false;      ///< `decode` leaves it out
  bool single_word = false;  ///< matches only if no word character stands next to it
  bool lstrip = false;       ///< the match includes the white space before it
  bool rstrip = false;       ///< the match includes the white space after it
  bool normalized = false;   ///< searched in the normalised text, not in the given text
};

/// Finds added tokens. Takes the leftmost match first; of several at one place, the longest.
class SASH_API AddedTokens {
 public:
  AddedTokens() = default;
  /// Searches the tokens whose `normalized` has this value. If it is true, the contents of these
  /// tokens are normalised first.
  AddedTokens(const std::vector<AddedToken>& tokens, bool normalized, const Normalizer& normalizer);

  struct Part {
    size_t begin, end;  ///< the range of characters in the text
    int64_t id;         ///< the number of the added token; -1 for text between added tokens
  };
  /// Splits the whole text into parts. No part is empty.
  std::vector<Part> split(std::u32string_view text) const;

 private:
  struct Entry {
    std::u32string content;
    AddedToken token;
  };
  const Entry* longest_at(std::u32string_view text, size_t at) const;

  std::unordered_map<char32_t, std::vector<Entry>>
      by_first_;  // by first character; the longest first
};

}  // namespace sash::text
