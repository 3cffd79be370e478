#include "expression.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include <sash/core/error.h>
#include <sash/core/philox.h>

namespace listops {
namespace {

constexpr int kMostDraws = 200000;

[[noreturn]] void refuse(const ExpressionOptions& options) {
  throw sash::ValueError("listops", "lengths that expressions have",
                         "more than " + std::to_string(options.shortest) + " and fewer than " +
                             std::to_string(options.longest) + " tokens");
}

int64_t value_of(int64_t op, std::vector<int64_t> arguments) {
  std::sort(arguments.begin(), arguments.end());
  const size_t n = arguments.size();
  switch (op) {
    case kMin:
      return arguments.front();
    case kMax:
      return arguments.back();
    case kMed:
      return (arguments[(n - 1) / 2] + arguments[n / 2]) / 2;
    default:
      return std::accumulate(arguments.begin(), arguments.end(), int64_t{0}) % 10;
  }
}

class Generator {
 public:
  Generator(uint64_t seed, uint64_t number, const ExpressionOptions& options)
      : seed_(seed), counter_(number << 32), options_(options) {}

  Expression draw() {
    const auto size = [this] { return std::ssize(expression_.tokens); };
    for (int i = 0; i < kMostDraws; ++i) {
      expression_.tokens.clear();
      expression_.value = append(1);
      if (size() > options_.shortest && size() < options_.longest) return std::move(expression_);
    }
    refuse(options_);
  }

 private:
  // In [0, n).
  int64_t number_below(int64_t n) { return int64_t{sash::philox(seed_, counter_++).lane[0]} % n; }

  // Appends a digit or a list; returns its value.
  int64_t append(int64_t depth) {
    std::vector<int64_t>& tokens = expression_.tokens;
    if (depth >= options_.depth || number_below(4) != 0) {
      tokens.push_back(number_below(10));
      return tokens.back();
    }
    const int64_t op = kMin + number_below(4), count = 2 + number_below(options_.arguments - 1);
    tokens.push_back(op);
    std::vector<int64_t> arguments;
    // What is too long already is drawn again, so its rest does not matter.
    do {
      arguments.push_back(append(depth + 1));
    } while (std::ssize(arguments) < count && std::ssize(tokens) < options_.longest);
    tokens.push_back(kEnd);
    return value_of(op, std::move(arguments));
  }

  uint64_t seed_, counter_;
  ExpressionOptions options_;
  Expression expression_;
};

}  // namespace

void check(const ExpressionOptions& options) {
  const auto [shortest, longest, depth, arguments] = options;
  if (shortest >= longest) refuse(options);
  const int64_t least = shortest < 1 ? 1 : std::max<int64_t>(shortest + 1, 4);
  if (least >= longest) refuse(options);
}

Expression random_expression(uint64_t seed, uint64_t number, const ExpressionOptions& options) {
  return Generator(seed, number, options).draw();
}

std::string to_string(const Expression& expression) {
  const char* operators[] = {"[MIN", "[MAX", "[MED", "[SM", "]"};
  std::string text;
  for (const int64_t token : expression.tokens) {
    if (!text.empty()) text += ' ';
    text += token < kMin ? std::to_string(token) : operators[token - kMin];
  }
  return text;
}

}  // namespace listops
