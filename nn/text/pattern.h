#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../../core/export.h"

namespace sash::text {

/// A regular expression over code points, as tokenizers write them.
///
/// It may have alternatives, groups `(...)`, `(?:...)` and `(?i:...)`, sets `[^\s\p{L}]`, `.`, `\s
/// \S \d \D \w \W \p{Lu} \P{N} \r \n \t`,
/// `\uXXXX`, `\x{...}`, look-ahead `(?=...)` and `(?!...)`, and `* + ? {m,n}`, also lazy (`+?`) and
/// possessive (`++`). `^` and `$` match at every line's begin and end. The leftmost match is taken,
/// of its alternatives the first, by backtracking. As in Oniguruma, but `(?i:ss)` does not match
/// "ß". Copies share the expression.
class SASH_API Pattern {
 public:
  /// `NotImplemented` for syntax that sash does not have, `FormatError` for none.
  explicit Pattern(std::string_view expression);
  /// This text itself.
  static Pattern literal(std::string_view text);

  /// Where a match begins and ends. It may be empty.
  using Match = std::pair<size_t, size_t>;

  /// The first match from `start` on. `NotImplemented` for a match of some thousand repetitions of
  /// a group, since these recurse, and for one that takes millions of steps at one place.
  std::optional<Match> find(std::u32string_view text, size_t start) const;
  /// All matches, each from the end of the last on. An empty one right behind another does not
  /// count, and an empty text has none.
  std::vector<Match> matches(std::u32string_view text) const;
  /// The text with `content` in the place of every match.
  std::u32string replace(std::u32string_view text, std::u32string_view content) const;

  struct Node;

 private:
  explicit Pattern(std::shared_ptr<const Node> root) : root_(std::move(root)) {}

  std::shared_ptr<const Node> root_;
};

}  // namespace sash::text
