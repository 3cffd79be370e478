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

TEST_CASE("tokenizers: numbers of tokens that are far apart are refused before memory is taken") {
  const auto read = [](const std::string& number) {
    return [number] {
      Tokenizer::from_json("{\"model\":{\"vocab\":{\"a\":0,\"b\":" + number + "},\"merges\":[]}}");
    };
  };
  expect_errors({
      {"nothing was thrown", read("65539")},
      {"FormatError: Vocabulary: expected token numbers below 65540 for 2 tokens, got 65540",
       read("65540")},
      {"FormatError: Vocabulary: expected token numbers below 65540 for 2 tokens, got 16777215",
       read("16777215")},
  });
}

// Forty of them would make a text of one letter 2^40 letters long.
TEST_CASE("tokenizers: parts that double a text again and again are refused") {
  const std::string part = R"({"type":"Replace","pattern":{"String":"a"},"content":"aa"})";
  const auto tokenizer = [](const std::string& parts) {
    return Tokenizer::from_json(
        R"({"model":{"vocab":{"a":0},"merges":[],"unk_token":"a"},"normalizer":null)" + parts +
        "}");
  };
  const auto parts = [](const std::string& key, const std::string& list, const std::string& all) {
    return ",\"" + key + "\":{\"type\":\"Sequence\",\"" + list + "\":[" + all + "]}";
  };
  const std::string flat = times(39, part + ",") + part;
  std::string nested = part + "," + part;
  for (int depth = 0; depth < 19; ++depth) {
    nested = part + "," + part + R"(,{"type":"Sequence","normalizers":[)" + nested + "]}";
  }
  const std::string wide = R"({"type":"Replace","pattern":{"String":"a"},"content":")" +
                           std::string(50'000, 'a') + "\"}";
  const auto encodes = [&](const std::string& all, size_t letters) {
    return [=, all = tokenizer(parts("normalizer", "normalizers", all))] {
      all.encode(std::string(letters, 'a'));
    };
  };
  const std::string refused = "NotImplemented: Tokenizer: a text of ";
  const std::string too_long = " characters that a tokenizer makes too long";
  expect_errors({
      {refused + "1" + too_long, encodes(flat, 1)},
      {refused + "1" + too_long, encodes(nested, 1)},
      {"nothing was thrown", encodes(part + "," + part, 10'000)},
      {"nothing was thrown", encodes(wide, 10)},
      {refused + "50000" + too_long, encodes(wide, 50'000)},
      {refused + "1" + too_long,
       [&] { tokenizer(parts("decoder", "decoders", flat)).decode({0}); }},
  });
}

TEST_CASE("tokenizers: a prefix before each of many parts of a text is refused") {
  const Tokenizer tokenizer = Tokenizer::from_json(
      R"({"model":{"vocab":{"a":0},"merges":[],"unk_token":"a"},"normalizer":{"type":"Prepend",)"
      R"("prepend":")" +
      std::string(40'000, 'a') +
      R"("},"added_tokens":[{"id":1,"content":"b","normalized":false}]})");
  expect_error<NotImplemented>(
      "Tokenizer: a text of 40000 characters that a tokenizer makes too long",
      [&] { tokenizer.encode(times(20'000, "ab")); });
}

TEST_CASE("tokenizers: decoders replace and strip in long tokens in linear time") {
  const std::string huge(1 << 20, 'a');
  const auto tokens = [&](const text::TokenDecoder& decoder) { return decoder({huge})[0].size(); };
  CHECK(tokens(text::token_decoders::strip("a", 1'000'000, 5)) == (1 << 20) - 1'000'005);
  CHECK(tokens(text::token_decoders::metaspace("a", true)) == 0);
  CHECK(tokens(text::token_decoders::metaspace("aa", false)) == 1 << 19);
}

TEST_CASE("tokenizers: nothing hides behind a byte of 0") {
  const std::string json = R"({"model":{"vocab":{"a":0},"merges":[]}})";
  expect_error<FormatError>("Tokenizer: expected JSON, got a byte of 0",
                            [&] { Tokenizer::from_json(json + '\0' + "{"); });
}
