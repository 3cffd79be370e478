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

/// A regular expression over code points, in the syntax of Oniguruma, which `tokenizer.json` uses.
/// `^` and `$` match at the begin and end of every line. Copies share the expression.
class SASH_API Pattern {
 public:
  /// Throws `FormatError` for an invalid expression.
  explicit Pattern(std::string_view expression);
  /// A pattern that matches this text and gives no character a special meaning.
  static Pattern literal(std::string_view text);

  /// Where a match begins and ends. It may be empty.
  using Match = std::pair<size_t, size_t>;

  /// The first match from `start` on. Throws `NotImplemented` if the search takes millions of steps
  /// back at one place, or keeps millions of places to step back to.
  std::optional<Match> find(std::u32string_view text, size_t start) const;
  /// All matches. Each search begins at the end of the last match. An empty match right behind
  /// another match does not count, and an empty text has no matches.
  std::vector<Match> matches(std::u32string_view text) const;
  /// The text with `content` in the place of every match.
  std::u32string replace(std::u32string_view text, std::u32string_view content) const;

 private:
  struct Program;
  class Search;
  explicit Pattern(std::shared_ptr<const Program> program) : program_(std::move(program)) {}

  std::shared_ptr<const Program> program_;
};

}  // namespace sash::text
