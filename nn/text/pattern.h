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

/// Throws `NotImplemented` if a text of `before` characters became longer than 64 times that and
/// 2^20: with a hostile tokenizer, each step could make it longer without end.
SASH_API void check_growth(size_t before, size_t after);

/// A regular expression over code points, in the syntax of Oniguruma, which `tokenizer.json` uses.
/// `^` and `$` match at the start and at the end of every line. Copies share the expression.
class SASH_API Pattern {
 public:
  /// Throws `FormatError` for an invalid expression.
  explicit Pattern(std::string_view expression);
  /// A pattern that matches this text and gives no character a special meaning.
  static Pattern literal(std::string_view text);

  /// Where a match begins and ends. It may be empty.
  using Match = std::pair<size_t, size_t>;

  /// The first match that begins at or after `start`. Throws `NotImplemented` if the search
  /// backtracks more than 4,000,000 times and 100 times the characters of the text, or stores
  /// 4,000,000 places to backtrack to.
  std::optional<Match> find(std::u32string_view text, size_t start) const;
  /// All matches. Each search begins at the end of the match before it. An empty match directly
  /// after another match does not count. An empty text has no matches. Throws as `find` does; the
  /// searches of a text share its limit of steps.
  std::vector<Match> matches(std::u32string_view text) const;
  /// Replaces every match by `content`. Throws as `find` and `check_growth` do.
  std::u32string replace(std::u32string_view text, std::u32string_view content) const;

 private:
  struct Program;
  class Search;
  explicit Pattern(std::shared_ptr<const Program> program) : program_(std::move(program)) {}

  std::shared_ptr<const Program> program_;
};

}  // namespace sash::text
