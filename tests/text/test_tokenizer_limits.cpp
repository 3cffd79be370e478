// A hostile tokenizer.json costs little time and memory: what it asks for is refused by name.
#include <doctest/doctest.h>

#include <string>

#include <sash/nn/text/pattern.h>
#include <sash/nn/text/tokenizer.h>
#include <sash/nn/text/unicode.h>

#include "../support/expect_error.h"

using namespace sash;
using namespace sash::testing;
using text::Tokenizer;

namespace {

std::string times(size_t count, const std::string& text) {
  std::string all;
  for (size_t i = 0; i < count; ++i) all += text;
  return all;
}

}  // namespace

// Each search is fast enough alone; together they would take minutes.
TEST_CASE("patterns: the searches of a text share a limit of steps") {
  const auto matches = [](const std::string& expression, const std::string& text) {
    return [=] { text::Pattern(expression).matches(text::from_utf8("test", text)); };
  };
  const std::string refused =
      "NotImplemented: Pattern: a search that ends with retry-limit-in-search over";
  expect_errors({
      {refused, matches("(?:a|aa)+b|a", times(4'000, std::string(18, 'a') + "c"))},
      {refused, matches("(?:a|aa)+[bd]", times(4'000, std::string(18, 'a') + "c"))},
      {"nothing was thrown", matches("(?:a|aa)+b|a", times(4'000, std::string(6, 'a') + "c"))},
      {"nothing was thrown", matches("a+b|a", times(1'000, std::string(99, 'a') + "b"))},
      {"nothing was thrown",
       matches(R"(\s+(?!\S)|\s+|\S)", times(10'000, std::string(50, ' ') + "x"))},
  });
}
