#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "pattern.h"

namespace sash::text {

/// Characters: ranges, categories, and what is not in other sets.
struct CharacterSet {
  std::vector<std::pair<char32_t, char32_t>> ranges{};
  uint32_t categories = 0;
  bool space = false;
  bool word = false;
  std::vector<CharacterSet> others{};  // [\S\p{L}] has the set of \S
  bool negated = false;
  bool any_case = false;  // before it is negated

  bool has(char32_t c) const;

 private:
  bool lists(char32_t c) const;
};

/// A part of an expression.
struct Pattern::Node {
  enum Kind { set, sequence, alternatives, repeat, ahead, begin, end };
  enum Greed { greedy, lazy, possessive };
  static constexpr size_t kMany = std::numeric_limits<size_t>::max();

  Kind kind = sequence;
  std::vector<Node> parts{};
  CharacterSet characters{};
  size_t least = 0, most = 0;  // of `repeat`, perhaps `kMany`
  Greed greed = greedy;
  bool negated = false;  // of `ahead`
};

/// The tree of an expression. `NotImplemented` for syntax that sash does not have, `FormatError`
/// for none.
Pattern::Node parse_pattern(std::string_view expression);

}  // namespace sash::text
