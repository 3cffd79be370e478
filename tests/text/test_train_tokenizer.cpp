#include <doctest/doctest.h>
#include <sash/core/error.h>
#include <sash/nn/text/tokenizer.h>
#include <sash/nn/text/train_tokenizer.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "../support/expect_error.h"

/// Trained tokenizers against those of the library `tokenizers` (parity/make_trained.py).
using namespace sash;
using namespace sash::testing;
using text::Tokenizer;
using Json = nlohmann::json;

namespace {

const Json& reference() {
  static const Json json = [] {
    std::ifstream in(SASH_TEST_PARITY "/trained.json");
    return Json::parse(in);
  }();
  return json;
}

std::vector<std::string> texts() { return reference()["texts"].get<std::vector<std::string>>(); }

void check_same(const char* name, const std::string& trained) {
  CAPTURE(name);
  const Json& want = reference()[name];
  const Json model = Json::parse(trained)["model"];
  CHECK(model["vocab"] == want["vocab"]);
  if (want.contains("merges")) CHECK(model["merges"] == want["merges"]);
  const Tokenizer tokenizer = Tokenizer::from_json(trained);
  CHECK(tokenizer.encode(reference()["check"].get<std::string>()) ==
        want["ids"].get<std::vector<int64_t>>());
}

}  // namespace

TEST_CASE("trained tokenizers: BPE has the vocabulary and merges of the library tokenizers") {
  check_same("gpt2",
             text::train_bpe(texts(), {.vocab = 700, .special_tokens = {"<|end|>", "<|pad|>"}}));
  check_same("llama3",
             text::train_bpe(texts(),
                             {.vocab = 5000, .min_frequency = 2, .pattern = text::kLlama3Pattern}));
}

TEST_CASE("trained tokenizers: BPE decodes every text to itself") {
  const std::vector<std::string> training = texts();
  const Tokenizer tokenizer = Tokenizer::from_json(
      text::train_bpe(training, {.vocab = 300, .special_tokens = {"<|end|>"}}));
  CHECK(tokenizer.size() == 300);
  CHECK(tokenizer.is_special(0));
  for (std::string text : training) {
    CHECK(tokenizer.decode(tokenizer.encode(text)) == text);
    text.insert(text.size() / 3, "<|end|>");
    CHECK(tokenizer.decode(tokenizer.encode(text), true) == text);
  }
  // Nothing to merge leaves the bytes.
  CHECK(Tokenizer::from_json(text::train_bpe({}, {})).size() == 256);
}

TEST_CASE("trained tokenizers: words have the vocabulary of the library tokenizers") {
  const std::vector<std::string> special{"[UNK]", "[PAD]"};
  check_same("words", text::train_word_level(texts(), {.vocab = 100, .special_tokens = special}));
  check_same("frequent_words",
             text::train_word_level(texts(), {.min_frequency = 4, .special_tokens = special}));
  const std::vector<std::string> corpus{"b a [ b, UNK ] a c"};
  const Tokenizer tokenizer = Tokenizer::from_json(
      text::train_word_level(corpus, {.vocab = 4, .special_tokens = {"[UNK]"}}));
  CHECK(tokenizer.encode("b d a, a") == std::vector<int64_t>{2, 0, 1, 3, 1});
  CHECK(tokenizer.decode({2, 1}) == "b a");
}

TEST_CASE("wrong calls: training of tokenizers") {
  const std::vector<std::string> good{"a b"}, bad{"a\xff"};
  expect_errors({
      {"ValueError: train_bpe: expected a vocabulary of at least 257 tokens, got 256",
       [&] { text::train_bpe(good, {.vocab = 256, .special_tokens = {"<s>"}}); }},
      {"ValueError: train_bpe: expected distinct special tokens that are not empty, got '<s>', "
       "'<s>'",
       [&] {
         text::train_bpe(good, {.special_tokens = {"<s>", "<s>"}});
       }},
      {"ValueError: train_bpe: expected distinct special tokens that are not empty, got ''",
       [&] { text::train_bpe(good, {.special_tokens = {""}}); }},
      {"ValueError: train_bpe: expected UTF-8 text, got byte 255 at 1",
       [&] { text::train_bpe(bad, {}); }},
      {"ValueError: train_bpe: expected UTF-8 text, got byte 255 at 1",
       [&] { text::train_bpe(good, {.special_tokens = bad}); }},
      {"ValueError: train_word_level: expected the unknown token among the special tokens, got "
       "'?'",
       [&] { text::train_word_level(good, {.unknown = "?"}); }},
      {"ValueError: train_word_level: expected a vocabulary of at least 1 tokens, got 0",
       [&] { text::train_word_level(good, {.vocab = 0}); }},
  });
  CHECK_THROWS_AS(text::train_bpe(good, {.pattern = "("}), FormatError);
  CHECK_THROWS_AS(Tokenizer::from_json(R"({"model":{"type":"WordLevel","vocab":{"a":0}}})"),
                  FormatError);
}
