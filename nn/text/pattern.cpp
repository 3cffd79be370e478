#include "pattern.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "../../core/error.h"
#include "../../core/quote.h"
#include "unicode.h"

namespace sash::text {
namespace {

constexpr size_t kMany = std::numeric_limits<size_t>::max();
constexpr int kMaxDepth = 100;           // of groups in groups
constexpr int kMaxRecursion = 5'000;     // of matching; only long repetitions of groups get there
constexpr size_t kMaxSteps = 4'000'000;  // of matching at one place, and more in long texts

using Ranges = std::vector<std::pair<char32_t, char32_t>>;

// Characters: ranges, categories, and what is not in other sets.
struct Set {
  Ranges ranges{};
  uint32_t categories = 0;
  bool space = false;
  bool word = false;
  std::vector<Set> others{};  // [\S\p{L}] has the set of \S
  bool negated = false;
  bool any_case = false;  // before it is negated

  bool has(char32_t c) const {
    if (lists(c)) return !negated;
    if (!any_case) return negated;
    const std::u32string cases = text::any_case(c);
    return std::any_of(cases.begin(), cases.end(), [&](char32_t d) { return lists(d); }) != negated;
  }

 private:
  bool lists(char32_t c) const {
    const auto in = [c](const auto& range) { return c >= range.first && c <= range.second; };
    return (categories != 0 && is_in(c, categories)) || (space && is_space(c)) ||
           (word && is_word(c) && !is_joiner(c)) || std::any_of(ranges.begin(), ranges.end(), in) ||
           std::any_of(others.begin(), others.end(), [c](const Set& set) { return set.has(c); });
  }
};

}  // namespace

struct Pattern::Node {
  enum Kind { set, sequence, alternatives, repeat, ahead, begin, end };
  enum Greed { greedy, lazy, possessive };

  Kind kind = sequence;
  std::vector<Node> parts{};
  Set characters{};
  size_t least = 0, most = 0;
  Greed greed = greedy;
  bool negated = false;  // of `ahead`
};

namespace {

using Node = Pattern::Node;

class Parser {
 public:
  explicit Parser(std::string_view expression)
      : source_(expression), text_(from_utf8("Pattern", expression)) {}

  Node parse() {
    Node root = alternatives(false, 0);
    if (at_ < text_.size()) fail("an expression", "a ')' too many");
    return root;
  }

 private:
  [[noreturn]] void fail(const std::string& expected, const std::string& got) const {
    throw FormatError("Pattern", expected, got + " in " + in_quotes(source_));
  }
  [[noreturn]] void unsupported(const std::string& what) const {
    throw NotImplemented("Pattern", what + " in the regular expression " + in_quotes(source_));
  }
  bool done() const { return at_ == text_.size(); }
  char32_t peek() const { return done() ? 0 : text_[at_]; }
  char32_t next() {
    if (done()) fail("a complete expression", "its end");
    return text_[at_++];
  }
  bool skip(std::u32string_view word) {
    if (!std::u32string_view(text_).substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }

  Node alternatives(bool any_case, int depth) {
    if (depth > kMaxDepth) fail("groups nested at most 100 deep", "deeper ones");
    Node all{.kind = Node::alternatives};
    do {
      all.parts.push_back(sequence(any_case, depth));
    } while (skip(U"|"));
    return all.parts.size() == 1 ? Node(all.parts[0]) : all;
  }

  Node sequence(bool any_case, int depth) {
    Node all{.kind = Node::sequence};
    while (!done() && peek() != '|' && peek() != ')') {
      all.parts.push_back(repeated(atom(any_case, depth)));
    }
    return all;
  }

  Node atom(bool any_case, int depth) {
    const char32_t c = next();
    if (c == '(') return group(any_case, depth);
    if (c == '^') return {.kind = Node::begin};
    if (c == '$') return {.kind = Node::end};
    if (c == '*' || c == '+' || c == '?') fail("something to repeat", "none");
    Node node{.kind = Node::set};
    Set& set = node.characters;
    if (c == '[') {
      set = bracket();
      set.any_case = any_case;
    } else if (c == '.') {
      set = {.ranges = {{'\n', '\n'}}, .negated = true};
    } else {
      set = c == '\\' ? escape(false) : Set{.ranges = {{c, c}}};
      // \p{Lu} has one case even in (?i:...); [\p{Lu}] has any.
      if (any_case && set.ranges.size() == 1) set.ranges = cases(set.ranges[0].first);
    }
    return node;
  }

  Node group(bool any_case, int depth) {
    Node node;
    if (skip(U"?:")) {
      node = alternatives(any_case, depth + 1);
    } else if (skip(U"?i:")) {
      node = alternatives(true, depth + 1);
    } else if (skip(U"?=") || skip(U"?!")) {
      const bool negated = text_[at_ - 1] == '!';
      node = {
          .kind = Node::ahead, .parts = {alternatives(any_case, depth + 1)}, .negated = negated};
    } else if (peek() == '?') {
      unsupported("a group of another kind than (...), (?:, (?i:, (?= and (?!");
    } else {
      node = alternatives(any_case, depth + 1);
    }
    if (!skip(U")")) fail("a ')'", "none");
    return node;
  }

  Node repeated(Node node) {
    for (int times = 0;; ++times) {
      if (times > kMaxDepth) fail("at most 100 repetitions of repetitions", "more");
      size_t least = 0, most = kMany;
      bool braces = false;
      if (skip(U"+")) {
        least = 1;
      } else if (skip(U"?")) {
        most = 1;
      } else if (peek() == '{' && counts(least, most)) {
        braces = true;
      } else if (!skip(U"*")) {
        return node;
      }
      // {1,3}+ repeats the whole, as in Oniguruma.
      const auto greed = !braces && skip(U"+") ? Node::possessive
                         : skip(U"?")          ? Node::lazy
                                               : Node::greedy;
      node = {.kind = Node::repeat,
              .parts = {std::move(node)},
              .least = least,
              .most = most,
              .greed = greed};
    }
  }

  // {m}, {m,} or {m,n}; anything else is text.
  bool counts(size_t& least, size_t& most) {
    const size_t start = at_++;
    const auto number = [this] {
      size_t value = 0;
      while (peek() >= '0' && peek() <= '9' && value < 100'000) value = 10 * value + (next() - '0');
      return value;
    };
    const size_t first = at_;
    least = most = number();
    if (at_ == first && peek() != ',') {
      at_ = start;
      return false;
    }
    if (skip(U",")) most = peek() == '}' ? kMany : number();
    if (!skip(U"}")) {
      at_ = start;
      return false;
    }
    if (most < least) fail("{m,n} with m at most n", "a smaller n");
    return true;
  }

  Set bracket() {
    Set set{.negated = skip(U"^")};
    for (bool first = true; first || peek() != ']'; first = false) {
      char32_t c = next();
      if (c == '[') unsupported("a set within a set");
      if (c == '&' && peek() == '&') unsupported("an intersection of sets");
      if (c == '\\') {
        const Set one = escape(true);
        if (one.ranges.size() != 1 || one.negated) {
          set.others.push_back(one);
          continue;
        }
        c = one.ranges[0].first;
      }
      char32_t last = c;
      if (peek() == '-' && at_ + 1 < text_.size() && text_[at_ + 1] != ']') {
        next();
        last = next();
        if (last == '\\') {
          const Set one = escape(true);
          if (one.ranges.size() != 1) fail("a character after '-'", "a class");
          last = one.ranges[0].first;
        }
        if (last < c) fail("a range that does not decrease", "another");
      }
      set.ranges.emplace_back(c, last);
    }
    next();
    return set;
  }

  Set escape(bool in_bracket) {
    const char32_t c = next();
    switch (c) {
      case 's':
      case 'S':
        return {.space = true, .negated = c == 'S'};
      case 'w':
      case 'W':
        return word(in_bracket, c == 'W');
      case 'd':
      case 'D':
        return {.categories = category_set("Nd"), .negated = c == 'D'};
      case 'p':
      case 'P':
        return property(c == 'P');
      case 'n':
        return {.ranges = {{'\n', '\n'}}};
      case 'r':
        return {.ranges = {{'\r', '\r'}}};
      case 't':
        return {.ranges = {{'\t', '\t'}}};
      case 'f':
        return {.ranges = {{'\f', '\f'}}};
      case 'v':
        return {.ranges = {{'\v', '\v'}}};
      case 'u':
        return hexadecimal(4);
      case 'x':
        return hexadecimal(2);
      default:
        break;
    }
    const bool other = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (other) unsupported("\\" + to_utf8(std::u32string(1, c)));
    return {.ranges = {{c, c}}};
  }

  static Ranges cases(char32_t c) {
    Ranges all;
    for (const char32_t d : any_case(c)) all.emplace_back(d, d);
    return all;
  }

  // Oniguruma takes ²³¹¼½¾ for words, but not in brackets.
  static Set word(bool in_bracket, bool negated) {
    Set set{.word = true, .negated = negated};
    if (!in_bracket) set.ranges = {{0xb2, 0xb3}, {0xb9, 0xb9}, {0xbc, 0xbe}};
    return set;
  }

  std::string until_brace() {
    std::string name;
    while (peek() != '}') append_utf8(name, next());
    next();
    return name;
  }

  Set property(bool negated) {
    const std::string name = skip(U"{") ? until_brace() : to_utf8(std::u32string(1, next()));
    const bool inverse = name.starts_with("^");
    const uint32_t set = category_set(std::string_view(name).substr(inverse ? 1 : 0));
    if (set == 0) unsupported("the property " + in_quotes(name));
    return {.categories = set, .negated = negated != inverse};
  }

  Set hexadecimal(size_t count) {
    std::string digits;
    if (skip(U"{")) {
      digits = until_brace();
    } else {
      while (digits.size() < count) append_utf8(digits, next());
    }
    const bool good = !digits.empty() && digits.size() <= 6 &&
                      digits.find_first_not_of("0123456789abcdefABCDEF") == digits.npos;
    if (!good) fail("hexadecimal digits", in_quotes(digits));
    const auto c = static_cast<char32_t>(std::stoul(digits, nullptr, 16));
    return {.ranges = {{c, c}}};
  }

  std::string_view source_;
  std::u32string text_;
  size_t at_ = 0;
};

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

Pattern::Pattern(std::string_view expression)
    : root_(std::make_shared<const Node>(Parser(expression).parse())) {}

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
