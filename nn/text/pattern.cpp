#include "pattern.h"

#include <algorithm>
#include <cstdint>

#include "../../core/error.h"
#include "pattern_node.h"
#include "unicode.h"

namespace sash::text {
namespace {

constexpr int kMaxRecursion = 5'000;     // of matching; only long repetitions of groups get there
constexpr size_t kMaxSteps = 4'000'000;  // of matching at one place, and more in long texts

using Node = Pattern::Node;
constexpr size_t kMany = Node::kMany;

// A callable that lives elsewhere.
class Rest {
 public:
  template <class F>
  Rest(const F& f)
      : object_(&f),
        call_([](const void* object, size_t at) { return (*static_cast<const F*>(object))(at); }) {}
  bool operator()(size_t at) const { return call_(object_, at); }

 private:
  const void* object_;
  bool (*call_)(const void*, size_t);
};

// Matches by continuation: `rest` is what must match behind a node.
class Matcher {
 public:
  explicit Matcher(std::u32string_view text) : text_(text), steps_(kMaxSteps + 100 * text.size()) {}

  // The end of a match of `node` that begins at `at`, or kMany.
  size_t match(const Node& node, size_t at) {
    size_t end = kMany;
    const auto stop = [&end](size_t to) {
      end = to;
      return true;
    };
    run(node, at, stop);
    return end;
  }

 private:
  bool run(const Node& node, size_t at, const Rest& rest) {
    if (++depth_ > kMaxRecursion) {
      throw NotImplemented("Pattern", "a match of more than 5000 repetitions and parts");
    }
    take_steps(1);
    const bool matches = run_kind(node, at, rest);
    --depth_;
    return matches;
  }

  void take_steps(size_t count) {
    if (count > steps_) {
      throw NotImplemented("Pattern", "an expression that takes more than 4000000 steps to match");
    }
    steps_ -= count;
  }

  bool run_kind(const Node& node, size_t at, const Rest& rest) {
    switch (node.kind) {
      case Node::set:
        return at < text_.size() && node.characters.has(text_[at]) && rest(at + 1);
      case Node::sequence:
        return sequence(node, 0, at, rest);
      case Node::alternatives:
        return std::any_of(node.parts.begin(), node.parts.end(),
                           [&](const Node& part) { return run(part, at, rest); });
      case Node::repeat:
        return repeat(node, at, rest);
      case Node::ahead:
        return (match(node.parts[0], at) != kMany) != node.negated && rest(at);
      case Node::begin:
        return (at == 0 || (at < text_.size() && text_[at - 1] == '\n')) && rest(at);
      case Node::end:
        return (at == text_.size() || text_[at] == '\n') && rest(at);
    }
    return false;
  }

  bool sequence(const Node& node, size_t part, size_t at, const Rest& rest) {
    take_steps(1);
    // Single characters need no continuation.
    while (part < node.parts.size() && node.parts[part].kind == Node::set) {
      if (at == text_.size() || !node.parts[part].characters.has(text_[at])) return false;
      ++at;
      ++part;
    }
    if (part == node.parts.size()) return rest(at);
    const auto others = [&](size_t next) { return sequence(node, part + 1, next, rest); };
    return run(node.parts[part], at, others);
  }

  bool repeat(const Node& node, size_t at, const Rest& rest) {
    if (node.parts[0].kind == Node::set) return repeat_set(node, at, rest);
    if (node.greed == Node::possessive) return possessive(node, at, rest);
    return repeat_group(node, 0, at, rest);
  }

  bool repeat_set(const Node& node, size_t at, const Rest& rest) {
    const size_t most = std::min(node.most, text_.size() - at);
    size_t count = 0;
    if (node.greed == Node::lazy) {
      for (;; ++count) {
        if (count >= node.least && rest(at + count)) return true;
        if (count == most || !node.parts[0].characters.has(text_[at + count])) return false;
      }
    }
    while (count < most && node.parts[0].characters.has(text_[at + count])) ++count;
    take_steps(count);
    if (count < node.least) return false;
    if (node.greed == Node::possessive) return rest(at + count);
    while (true) {
      if (rest(at + count)) return true;
      if (count-- == node.least) return false;
    }
  }

  bool possessive(const Node& node, size_t at, const Rest& rest) {
    size_t count = 0;
    while (count < node.most) {
      const size_t end = match(node.parts[0], at);
      if (end == kMany) break;
      ++count;
      if (end == at) break;
      at = end;
    }
    return count >= node.least && rest(at);
  }

  bool repeat_group(const Node& node, size_t count, size_t at, const Rest& rest) {
    const bool enough = count >= node.least;
    if (enough && node.greed == Node::lazy && rest(at)) return true;
    if (count < node.most) {
      // What matches nothing does so once.
      const auto again = [&](size_t next) {
        return (next != at || !enough) && repeat_group(node, count + 1, next, rest);
      };
      if (run(node.parts[0], at, again)) return true;
    }
    return enough && node.greed != Node::lazy && rest(at);
  }

  std::u32string_view text_;
  size_t steps_;
  int depth_ = 0;
};

}  // namespace

bool CharacterSet::has(char32_t c) const {
  if (lists(c)) return !negated;
  if (!any_case) return negated;
  const std::u32string cases = text::any_case(c);
  return std::any_of(cases.begin(), cases.end(), [&](char32_t d) { return lists(d); }) != negated;
}

bool CharacterSet::lists(char32_t c) const {
  const auto in = [c](const auto& range) { return c >= range.first && c <= range.second; };
  return (categories != 0 && is_in(c, categories)) || (space && is_space(c)) ||
         (word && is_word(c) && !is_joiner(c)) || std::any_of(ranges.begin(), ranges.end(), in) ||
         std::any_of(others.begin(), others.end(),
                     [c](const CharacterSet& set) { return set.has(c); });
}

Pattern::Pattern(std::string_view expression)
    : root_(std::make_shared<const Node>(parse_pattern(expression))) {}

Pattern Pattern::literal(std::string_view text) {
  Node node{.kind = Node::sequence};
  for (const char32_t c : from_utf8("Pattern", text)) {
    node.parts.push_back({.kind = Node::set, .characters = {.ranges = {{c, c}}}});
  }
  return Pattern(std::make_shared<const Node>(std::move(node)));
}

std::optional<Pattern::Match> Pattern::find(std::u32string_view text, size_t start) const {
  for (size_t at = start; at <= text.size(); ++at) {
    const size_t end = Matcher(text).match(*root_, at);
    if (end != kMany) return Match{at, end};
  }
  return std::nullopt;
}

std::vector<Pattern::Match> Pattern::matches(std::u32string_view text) const {
  std::vector<Match> all;
  if (text.empty()) return all;
  for (size_t at = 0; const auto match = find(text, at);) {
    const auto [begin, end] = *match;
    const bool counts = begin != end || all.empty() || all.back().second != end;
    if (counts) all.push_back(*match);
    at = counts ? end : end + 1;
  }
  return all;
}

std::u32string Pattern::replace(std::u32string_view text, std::u32string_view content) const {
  std::u32string result;
  size_t done = 0;
  for (const auto& [begin, end] : matches(text)) {
    result += text.substr(done, begin - done);
    result += content;
    done = end;
  }
  result += text.substr(done);
  return result;
}

}  // namespace sash::text
