#include <cctype>
#include <charconv>

#include "../../../core/quote.h"
#include "attention_mask.h"

/// Masks from text, by recursive descent:
///
///     union = intersection { "|" intersection }
///     intersection = part { "&" part }
///     part = "(" union ")" | name [ ":" number { "," number } ]
namespace sash {
namespace {

constexpr int kMaxDepth = 100;

using Numbers = std::vector<std::optional<int64_t>>;

class Parser {
 public:
  explicit Parser(const std::string& text) : text_(text) {}

  AttentionMask run() {
    AttentionMask mask = parse_union();
    if (at_ < text_.size()) fail("'|', '&' or the end");
    return mask;
  }

 private:
  AttentionMask parse_union() {
    AttentionMask mask = parse_intersection();
    while (take('|')) mask = mask | parse_intersection();
    return mask;
  }

  AttentionMask parse_intersection() {
    AttentionMask mask = parse_part();
    while (take('&')) mask = mask & parse_part();
    return mask;
  }

  AttentionMask parse_part() {
    if (take('(')) {
      if (++depth_ > kMaxDepth) fail("at most " + std::to_string(kMaxDepth) + " open parentheses");
      AttentionMask mask = parse_union();
      if (!take(')')) fail("')'");
      --depth_;
      return mask;
    }
    const size_t start = at_;
    while (at_ < text_.size() &&
           (std::isalnum(static_cast<unsigned char>(text_[at_])) || text_[at_] == '_'))
      ++at_;
    const std::string name = text_.substr(start, at_ - start);
    Numbers numbers;
    if (take(':')) {
      do {
        numbers.push_back(parse_number());
      } while (take(','));
    }
    skip_spaces();
    return make(name, numbers, start);
  }

  // A number, or nothing for "inf".
  std::optional<int64_t> parse_number() {
    skip_spaces();
    if (text_.compare(at_, 3, "inf") == 0) {
      at_ += 3;
      skip_spaces();
      return std::nullopt;
    }
    int64_t value = 0;
    const char* const from = text_.data() + at_;
    const auto [past, error] = std::from_chars(from, text_.data() + text_.size(), value);
    if (error != std::errc()) fail("a number");
    at_ += static_cast<size_t>(past - from);
    skip_spaces();
    return value;
  }

  AttentionMask make(const std::string& name, const Numbers& numbers, size_t start) {
    const auto wants = [&](size_t least, size_t most, bool sides = false) {
      bool fits = numbers.size() >= least && numbers.size() <= most;
      for (size_t i = sides ? 2 : 0; i < numbers.size(); ++i) fits = fits && numbers[i];
      if (fits) return;
      at_ = start;
      fail("after " + in_quotes(name) + " " + std::to_string(least) +
           (most == least ? ""
            : most > 99   ? " or more"
                          : " to " + std::to_string(most)) +
           " numbers");
    };
    const auto number = [&](size_t i) { return numbers[i].value(); };
    const auto from = [&](size_t first) {
      std::vector<int64_t> values;
      for (size_t i = first; i < numbers.size(); ++i) values.push_back(number(i));
      return values;
    };
    constexpr size_t kAny = 1 << 20;
    if (name == "dense" || name == "full") return wants(0, 0), AttentionMask();
    if (name == "causal") return wants(0, 0), AttentionMask::causal();
    if (name == "window") {
      wants(2, 2, true);
      return AttentionMask::window(numbers[0], numbers[1]);
    }
    if (name == "local") return wants(1, 1), AttentionMask::local(number(0));
    if (name == "symmetric_window") return wants(1, 1), AttentionMask::symmetric_window(number(0));
    if (name == "causal_window") return wants(1, 1), AttentionMask::causal_window(number(0));
    if (name == "dilated_window") {
      wants(3, kAny, true);
      return AttentionMask::dilated_window(numbers[0], numbers[1], from(2));
    }
    if (name == "global") return wants(1, kAny), AttentionMask::global(from(0));
    if (name == "sinks") return wants(1, 1), AttentionMask::sinks(number(0));
    if (name == "random_blocks") {
      wants(2, 3);
      return AttentionMask::random_blocks(number(0), static_cast<uint64_t>(number(1)),
                                          numbers.size() > 2 ? number(2) : 64);
    }
    if (name == "longformer") {
      wants(2, kAny);
      return AttentionMask::symmetric_window(number(0)) | AttentionMask::global(from(1));
    }
    if (name == "neighborhood") {
      wants(3, 16);
      const auto axes = static_cast<size_t>(std::clamp<int64_t>(number(0), 1, 3));
      const bool whole = (numbers.size() - 1) % axes == 0;
      wants(1 + 2 * axes, whole ? 1 + 5 * axes : 1 + 2 * axes);
      const auto part = [&](size_t i) {
        std::vector<int64_t> values = from(1 + i * axes);
        values.resize(std::min(values.size(), axes));
        return values;
      };
      const std::vector<int64_t> causal = part(4);
      return AttentionMask::neighborhood(part(0), part(1), part(2), part(3),
                                         std::vector<bool>(causal.begin(), causal.end()));
    }
    if (name == "bigbird") {
      if (numbers.empty()) return AttentionMask::bigbird();
      wants(4, 5);
      return AttentionMask::bigbird(
          {.block = number(0),
           .window = number(1),
           .global = number(2),
           .random = number(3),
           .seed = numbers.size() > 4 ? static_cast<uint64_t>(number(4)) : 0});
    }
    at_ = start;
    fail(
        "dense, full, causal, local:C, window:L,R, symmetric_window:W, causal_window:N, "
        "dilated_window:L,R,D, "
        "global:T,..., sinks:N, random_blocks:N,SEED, bigbird, longformer:W,T,... or "
        "neighborhood:AXES,EXTENT,...,KERNEL,...");
  }

  bool take(char c) {
    skip_spaces();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    skip_spaces();
    return true;
  }

  void skip_spaces() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }

  [[noreturn]] void fail(const std::string& expected) const {
    throw ValueError("attention_mask", expected + " at position " + std::to_string(at_),
                     in_quotes(text_));
  }

  const std::string& text_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

AttentionMask AttentionMask::parse(const std::string& spec) { return Parser(spec).run(); }

}  // namespace sash
