#include <algorithm>

#include "../../core/error.h"
#include "../../core/quote.h"
#include "pattern_node.h"
#include "unicode.h"

namespace sash::text {
namespace {

constexpr int kMaxGroups = 100;  // of groups in groups

using Set = CharacterSet;
using Ranges = decltype(Set::ranges);
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
    if (depth > kMaxGroups) fail("groups nested at most 100 deep", "deeper ones");
    Node all{.kind = Node::alternatives};
    do {
      all.parts.push_back(sequence(any_case, depth));
    } while (skip(U"|"));
    return all.parts.size() == 1 ? Node(std::move(all.parts[0])) : all;
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
      if (times > kMaxGroups) fail("at most 100 repetitions of repetitions", "more");
      size_t least = 0, most = Node::kMany;
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
    if (skip(U",")) most = peek() == '}' ? Node::kMany : number();
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

}  // namespace

Pattern::Node parse_pattern(std::string_view expression) { return Parser(expression).parse(); }

}  // namespace sash::text
