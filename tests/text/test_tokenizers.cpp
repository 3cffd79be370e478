#include <doctest/doctest.h>
#include <sash/core/error.h>
#include <sash/nn/text/tokenizer.h>
#include <sash/tensor/io/gguf.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "../support/expect_error.h"

using namespace sash;
using namespace sash::testing;
using text::Tokenizer;
using Json = nlohmann::json;

namespace {

/// What the library `tokenizers` makes of texts (parity/make_tokenizers.py).
const Json& references() {
  static const Json rows = [] {
    std::ifstream in(SASH_TEST_PARITY "/tokenizers.json");
    return Json::parse(in);
  }();
  return rows;
}

using Ids = std::vector<int64_t>;

}  // namespace

TEST_CASE("tokenizers: numbers and text are those of the library tokenizers") {
  REQUIRE(references().size() >= 20);
  for (const Json& row : references()) {
    const auto name = row["name"].get<std::string>();
    CAPTURE(name);
    const Tokenizer tokenizer = Tokenizer::from_json(row["tokenizer"].dump());
    for (const Json& item : row["cases"]) {
      const auto input = item["text"].get<std::string>();
      CAPTURE(input);
      const Ids ids = tokenizer.encode(input);
      CHECK(ids == item["ids"].get<Ids>());
      CHECK(tokenizer.encode(input, false) == item["plain"].get<Ids>());
      CHECK(tokenizer.decode(ids) == item["decoded"].get<std::string>());
      CHECK(tokenizer.decode(ids, true) == item["kept"].get<std::string>());
    }
    for (const Json& item : row["pairs"]) {
      const text::Encoding pair =
          tokenizer.encode_pair(item["a"].get<std::string>(), item["b"].get<std::string>());
      CHECK(pair.ids == item["ids"].get<Ids>());
      CHECK(pair.type_ids == item["type_ids"].get<Ids>());
    }
  }
}

TEST_CASE("tokenizers: vocabularies of GGUF files give what their tokenizer.json does") {
  for (const std::string name : {"smollm", "llama2"}) {
    CAPTURE(name);
    const auto row = std::find_if(references().begin(), references().end(),
                                  [&](const Json& r) { return r["name"] == name; });
    REQUIRE(row != references().end());
    const Tokenizer tokenizer =
        Tokenizer::from_gguf(GgufFile(SASH_TEST_PARITY "/" + name + ".gguf"));
    const bool begins = name == "llama2";  // with <s>, unlike what the script trained
    for (const Json& item : (*row)["cases"]) {
      const auto input = item["text"].get<std::string>();
      CAPTURE(input);
      Ids ids = item["ids"].get<Ids>();
      CHECK(tokenizer.encode(input, false) == ids);
      CHECK(tokenizer.decode(ids) == item["decoded"].get<std::string>());
      if (begins) ids.insert(ids.begin(), 1);
      CHECK(tokenizer.encode(input) == ids);
    }
  }
}

TEST_CASE("tokenizers: tokens by number and by name") {
  const Tokenizer bert = Tokenizer::from_json(references()[11]["tokenizer"].dump());
  CHECK(references()[11]["name"] == "bert uncased");
  CHECK(bert.size() == 400);
  CHECK(bert.id("[CLS]") == 2);
  CHECK(bert.token(2) == "[CLS]");
  CHECK(bert.is_special(2));
  CHECK_FALSE(bert.is_special(30));
  CHECK_FALSE(bert.id("no such token"));
  CHECK(bert.token(400).empty());
  expect_errors({
      {"IndexError: Tokenizer: expected tokens below 400, got 400", [&] { bert.decode({400}); }},
      {"ValueError: Tokenizer: expected UTF-8 text, got byte 255 at 1",
       [&] { bert.encode("a\xff"); }},
      {"ValueError: Tokenizer: expected UTF-8 text, got byte 226 at 0",
       [&] { bert.encode("\xe2\x82"); }},
  });
}

TEST_CASE("tokenizers: parts that sash does not have are named") {
  const auto with = [](const std::string& parts) {
    return [parts] {
      Tokenizer::from_json("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[]}" + parts + "}");
    };
  };
  expect_errors({
      {"nothing was thrown", with("")},
      {"NotImplemented: Tokenizer: sash has no normalizer 'Precompiled'",
       with(R"(,"normalizer":{"type":"Precompiled"})")},
      {"NotImplemented: Tokenizer: sash has no pre-tokenizer 'CharDelimiterSplit'",
       with(R"(,"pre_tokenizer":{"type":"CharDelimiterSplit"})")},
      {"NotImplemented: Tokenizer: sash has no decoder 'CTC'",
       with(R"(,"decoder":{"type":"CTC"})")},
      {"NotImplemented: Tokenizer: sash has no post-processor 'X'",
       with(R"(,"post_processor":{"type":"X"})")},
      {"NotImplemented: Tokenizer: sash has no model 'WordLevel'",
       [] { Tokenizer::from_json(R"({"model":{"type":"WordLevel","vocab":{}}})"); }},
      {"NotImplemented: Pattern: a group of another kind than (...), (?:, (?i:, (?= and (?! in the "
       "regular expression '(?<=a)b'",
       with(R"(,"pre_tokenizer":{"type":"Split","pattern":{"Regex":"(?<=a)b"},)"
            R"("behavior":"Isolated"})")},
      {"FormatError: Pattern: expected a ')', got none in '(a'",
       with(R"(,"normalizer":{"type":"Replace","pattern":{"Regex":"(a"},"content":""})")},
      {"FormatError: Tokenizer: expected merges of tokens of the vocabulary, got 'ab'",
       [] { Tokenizer::from_json(R"({"model":{"vocab":{"a":0,"b":1},"merges":["a b"]}})"); }},
      {"FormatError: Vocabulary: expected a number for each token, got 0 for 'a' and 'b'",
       [] { Tokenizer::from_json(R"({"model":{"vocab":{"a":0,"b":0},"merges":[]}})"); }},
  });
  CHECK(thrown_by([] {
          Tokenizer::from_json("{");
        }).starts_with("FormatError: Tokenizer: expected a tokenizer.json, got "));
  CHECK(thrown_by([] {
          Tokenizer::from_json("{}");
        }).starts_with("FormatError: Tokenizer: expected a tokenizer.json, got "));
  expect_error<IoError>("Tokenizer: cannot read '/no/file'", [] { Tokenizer::load("/no/file"); });
}

TEST_CASE("tokenizers: every cut of a tokenizer.json is an error") {
  const std::string whole = references()[0]["tokenizer"].dump();
  for (size_t length = 0; length < whole.size(); length += 53) {
    CHECK(thrown_by([&] {
            Tokenizer::from_json(whole.substr(0, length));
          }).starts_with("FormatError: "));
  }
}
