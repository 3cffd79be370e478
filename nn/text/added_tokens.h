#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "normalizer.h"

namespace sash::text {

/// A token that is found in the text before anything else is done to it.
struct AddedToken {
  std::string content{};
  int64_t id = 0;
  bool special = false;      ///< left out by `decode`
  bool single_word = false;  ///< only between characters that are not of words
  bool lstrip = false;       ///< takes the white space before it
  bool rstrip = false;       ///< takes the white space behind it
  bool normalized = false;   ///< is found in the normalised text
};

/// Finds added tokens, the leftmost and of these the longest.
class SASH_API AddedTokens {
 public:
  AddedTokens() = default;
  /// Of `tokens`, those with this `normalized`; these are normalised first.
  AddedTokens(const std::vector<AddedToken>& tokens, bool normalized, const Normalizer& normalizer);

  struct Part {
    size_t begin, end;  ///< in the text
    int64_t id;         ///< of the added token, or -1: text between these
  };
  /// The whole text in parts, none of them empty.
  std::vector<Part> split(std::u32string_view text) const;

 private:
  struct Entry {
    std::u32string content;
    AddedToken token;
  };
  const Entry* longest_at(std::u32string_view text, size_t at) const;

  std::unordered_map<char32_t, std::vector<Entry>> by_first_;  // the longest first
};

}  // namespace sash::text
