#include <doctest/doctest.h>
#include <sash/core/error.h>
#include <sash/nn/text/pattern.h>
#include <sash/nn/text/tokenizer.h>
#include <sash/tensor/io/gguf.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "../support/expect_error.h"
#include "../support/temporary_folder.h"

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

TEST_CASE("tokenizers: a byte-level vocabulary of a GGUF file says how text is split") {
  std::ifstream in(SASH_TEST_PARITY "/smollm.gguf", std::ios::binary);
  const std::string whole{std::istreambuf_iterator<char>(in), {}};
  const TemporaryFolder folder;
  const std::string path = folder.file("x.gguf");
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string bytes = whole;
    REQUIRE(bytes.find(from) != bytes.npos);
    bytes.replace(bytes.find(from), from.size(), to);
    std::filesystem::remove(path);
    std::ofstream(path, std::ios::binary) << bytes;
    return thrown_by([&] { Tokenizer::from_gguf(GgufFile(path)); });
  };
  const std::string choices =
                        "gpt-2, olmo, smollm, starcoder, llama-bpe, dbrx, qwen2, gpt-4o, tekken",
                    place = "; in '" + path + "'";
  CHECK(with("tokenizer.ggml.pre", "tokenizer.ggml.pro") ==
        "FormatError: Tokenizer: expected tokenizer.ggml.pre of a byte-level vocabulary: " +
            choices + ", got none" + place);
  CHECK(
      with("smollm", "smollX") ==
      "NotImplemented: Tokenizer: sash does not know how tokenizer.ggml.pre 'smollX' splits text, "
      "but " +
          choices + place);
}

TEST_CASE("tokenizers: a GGUF file without types of tokens") {
  std::ifstream in(SASH_TEST_PARITY "/llama2.gguf", std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(in), {}};
  const std::string key = "tokenizer.ggml.token_type";
  REQUIRE(bytes.find(key) != bytes.npos);
  bytes.replace(bytes.find(key), key.size(), "tokenizer.ggml.token_typo");
  const TemporaryFolder folder;
  std::ofstream(folder.file("x.gguf"), std::ios::binary) << bytes;
  const Tokenizer typed = Tokenizer::from_gguf(GgufFile(SASH_TEST_PARITY "/llama2.gguf"));
  const Tokenizer plain = Tokenizer::from_gguf(GgufFile(folder.file("x.gguf")));
  CHECK(plain.size() == typed.size());
  for (int64_t id = 0; id < typed.size(); ++id) CHECK(plain.is_special(id) == typed.is_special(id));
  for (const std::string text : {"Hello  world", "<s>a</s>", "caf\xc3\xa9 \xf0\x9f\x98\x80"}) {
    CHECK(plain.encode(text) == typed.encode(text));
    CHECK(plain.decode(plain.encode(text)) == typed.decode(typed.encode(text)));
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
      {"NotImplemented: Tokenizer: sash has no model 'X'",
       [] { Tokenizer::from_json(R"({"model":{"type":"X","vocab":{}}})"); }},
      {"nothing was thrown",
       with(R"(,"pre_tokenizer":{"type":"Split","pattern":{"Regex":"(?<=a)b"},)"
            R"("behavior":"Isolated"})")},
      {"FormatError: Pattern: expected a regular expression, got end pattern with unmatched "
       "parenthesis in '(a'",
       with(R"(,"normalizer":{"type":"Replace","pattern":{"Regex":"(a"},"content":""})")},
      {"FormatError: Tokenizer: expected merges of tokens of the vocabulary, got 'ab'",
       [] { Tokenizer::from_json(R"({"model":{"vocab":{"a":0,"b":1},"merges":["a b"]}})"); }},
      {"FormatError: Vocabulary: expected another number for each token, got 0 for 'a' and 'b'",
       [] { Tokenizer::from_json(R"({"model":{"vocab":{"a":0,"b":0},"merges":[]}})"); }},
  });
  CHECK(thrown_by([] {
          Tokenizer::from_json("{");
        }).starts_with("FormatError: Tokenizer: expected a valid tokenizer.json, got "));
  CHECK(thrown_by([] {
          Tokenizer::from_json("{}");
        }).starts_with("FormatError: Tokenizer: expected a valid tokenizer.json, got "));
  expect_errors({
      {"IoError: Tokenizer: cannot open '/no/file': No such file or directory",
       [] { Tokenizer::load("/no/file"); }},
      {"IoError: Tokenizer: cannot read '/': Is a directory", [] { Tokenizer::load("/"); }},
  });
}

TEST_CASE("tokenizers: numbers that are out of range are refused") {
  const auto with = [](const std::string& parts) {
    return [parts] {
      Tokenizer::from_json("{\"model\":{\"vocab\":{\"a\":0,\"b\":1},\"merges\":[]}" + parts + "}");
    };
  };
  const auto added = [&](const std::string& id) {
    return with(R"(,"added_tokens":[{"id":)" + id + R"(,"content":"x"}])");
  };
  const auto bert = [&](const std::string& cls) {
    return with(R"(,"post_processor":{"type":"BertProcessing","sep":["b",1],"cls":["a",)" + cls +
                "]}");
  };
  const auto special = [&](const std::string& id) {
    const std::string item = R"([{"SpecialToken":{"id":"x","type_id":0}}])";
    return with(R"(,"post_processor":{"type":"TemplateProcessing","single":)" + item +
                R"(,"pair":)" + item + R"(,"special_tokens":{"x":{"ids":[)" + id + "]}}}");
  };
  const auto strip = [&](const std::string& content, const std::string& start) {
    return with(R"(,"decoder":{"type":"Strip","stop":0,"content":")" + content + R"(","start":)" +
                start + "}");
  };
  const auto word_piece = [](const std::string& most) {
    return [most] {
      Tokenizer::from_json(R"({"model":{"type":"WordPiece","vocab":{"u":0},"unk_token":"u",)"
                           R"("max_input_chars_per_word":)" +
                           most + "}}");
    };
  };
  const std::string id = "FormatError: Tokenizer: expected an integer id from 0 to 16777215, got ";
  const std::string any = " from 0 to 9223372036854775807, got ";
  const std::string below =
      "FormatError: Tokenizer: expected tokens of the post-processor below 2, got ";
  const std::string most =
      "FormatError: Tokenizer: expected an integer max_input_chars_per_word" + any;
  expect_errors({
      {"nothing was thrown", added("16777215")},
      {id + "9223372036854775807", added("9223372036854775807")},
      {id + "-1", added("-1")},
      {id + "2.5", added("2.5")},
      {"nothing was thrown", bert("1")},
      {below + "2", bert("2")},
      {"FormatError: Tokenizer: expected an integer cls" + any + "-7", bert("-7")},
      {"nothing was thrown", special("1")},
      {below + "999999999", special("999999999")},
      {"FormatError: Tokenizer: expected an integer id" + any + "-7", special("-7")},
      {"nothing was thrown", strip(" ", "1")},
      {"FormatError: Tokenizer: expected a content to strip that is not empty, got ''",
       strip("", "9223372036854775807")},
      {"FormatError: Tokenizer: expected an integer start" + any + "18446744073709551615",
       strip(" ", "18446744073709551615")},
      {"nothing was thrown", word_piece("100")},
      {most + "-1", word_piece("-1")},
      {most + "1e+300", word_piece("1e300")},
      {"FormatError: Tokenizer: expected an integer vocab from 0 to 16777215, got 0.5",
       [] { Tokenizer::from_json(R"({"model":{"vocab":{"a":0.5},"merges":[]}})"); }},
      {"FormatError: Tokenizer: expected numbers of added tokens from 0 to 2^24, got -1",
       [] {
         text::TokenizerParts parts;
         parts.vocabulary = std::make_shared<const text::Vocabulary>(std::vector<std::string>{"a"});
         parts.added = {{.content = "x", .id = -1}};
         Tokenizer{parts};
       }},
  });
}

TEST_CASE("tokenizers: JSON that is nested deeply is refused") {
  const auto times = [](size_t count, const std::string& text) {
    std::string all;
    for (size_t i = 0; i < count; ++i) all += text;
    return all;
  };
  const auto read = [](const std::string& normalizer) {
    return [normalizer] {
      Tokenizer::from_json(R"({"model":{"vocab":{"[[\"{":0},"merges":[]},"normalizer":)" +
                           normalizer + "}");
    };
  };
  const auto sequences = [&](size_t count) {
    return read(times(count, R"({"type":"Sequence","normalizers":[)") + R"({"type":"NFC"})" +
                times(count, "]}"));
  };
  const std::string error =
      "FormatError: Tokenizer: expected JSON nested at most 64 deep, got a deeper one";
  expect_errors({
      {"nothing was thrown", sequences(31)},
      {error, sequences(32)},
      {error, sequences(60'000)},
      {error, read(times(1'000'000, "[") + times(1'000'000, "]"))},
      {error, read(times(1'000'000, "["))},
  });
}

TEST_CASE("patterns: hostile expressions are refused") {
  const auto find = [](const std::string& expression, size_t length) {
    return [=] { text::Pattern(expression).find(std::u32string(length, U'a'), 0); };
  };
  const auto times = [](const std::string& text) {
    std::string all;
    for (int i = 0; i < 100'000; ++i) all += text;
    return all;
  };
  const std::string refused = "NotImplemented: Pattern: a search that ends with ";
  const std::string invalid =
      "FormatError: Pattern: expected a regular expression, got parse depth limit over in '";
  expect_errors({
      {"nothing was thrown", find("(?:a|b)+", 18'000)},
      {"nothing was thrown", find(times("a?"), 100'000)},
      {"nothing was thrown", find("(?:a|b)++", 100'000)},
      {"nothing was thrown", find("a+b|a+", 3'000'000)},
      {refused + "match-stack limit over", find("(?:a|b)+", 9'000'000)},
      {refused + "retry-limit-in-search over", find("(a*)*[^a]", 40)},
      {refused + "retry-limit-in-search over", find("(a+)+\\1b", 40)},
      {invalid + "a" + std::string(59, '*') + "...'", find("a" + times("*"), 1)},
      {invalid + std::string(60, '(') + "...'", find(times("(") + "a" + times(")"), 1)},
      {invalid + std::string(60, '[') + "...'", find(times("["), 1)},
      // Oniguruma would call a function of the program there; it leaks memory.
      {"FormatError: Pattern: expected a regular expression, got undefined group option in "
       "'(?{0})'",
       find("(?{0})", 1)},
      {"FormatError: Pattern: expected a regular expression, got target of repeat operator is not "
       "specified in '(*FAIL)'",
       find("(*FAIL)", 1)},
  });
}

TEST_CASE("tokenizers: scores that are no numbers are refused") {
  const text::Vocabulary vocabulary(std::vector<std::string>{"a", "b", "ab"});
  CHECK(text::merges_of_scores(vocabulary, {0, -1, -2}).size() == 1);
  expect_error<FormatError>("Vocabulary: expected scores that are numbers, got NaN for 'b'", [&] {
    text::merges_of_scores(vocabulary, {0, std::nan(""), -2});
  });
}

TEST_CASE("tokenizers: every cut of a tokenizer.json is an error") {
  const std::string whole = references()[0]["tokenizer"].dump();
  for (size_t length = 0; length < whole.size(); length += 53) {
    CHECK(thrown_by([&] {
            Tokenizer::from_json(whole.substr(0, length));
          }).starts_with("FormatError: "));
  }
}

TEST_CASE("tokenizers: merges of scores are all pairs of tokens that make a token") {
  std::set<std::string> words;
  for (uint64_t bits = 1; words.size() < 150;
       bits = bits * 6364136223846793005 + 1442695040888963407) {
    std::string word;
    for (uint64_t i = 0; i < 1 + (bits >> 40) % 7; ++i) word += bits >> (50 + i) & 1 ? 'a' : 'b';
    words.insert(word);
  }
  const text::Vocabulary vocabulary(std::vector<std::string>(words.begin(), words.end()));
  std::vector<double> scores;
  for (int64_t id = 0; id < vocabulary.size(); ++id) scores.push_back(-static_cast<double>(id % 9));
  using Pair = std::pair<int64_t, int64_t>;
  std::set<Pair> want, got;
  for (int64_t a = 0; a < vocabulary.size(); ++a) {
    for (int64_t b = 0; b < vocabulary.size(); ++b) {
      if (vocabulary.id(vocabulary.token(a) + vocabulary.token(b))) want.emplace(a, b);
    }
  }
  for (const text::Merge& merge : text::merges_of_scores(vocabulary, scores)) {
    CHECK(vocabulary.token(merge.result) ==
          vocabulary.token(merge.left) + vocabulary.token(merge.right));
    CHECK(merge.rank == merge.result % 9);
    got.emplace(merge.left, merge.right);
  }
  CHECK(want.size() > 50);
  CHECK(got == want);
}

// Each would take hours if its time grew with the square of a megabyte.
TEST_CASE("tokenizers: a token, a word and a vocabulary of a megabyte take seconds") {
  const std::string huge(1 << 20, 'a');
  const text::Vocabulary vocabulary({"a", "aa", "b", huge});
  CHECK(text::merges_of_scores(vocabulary, {0, 0, 0, 0}).size() == 1);

  const auto words = std::make_shared<const text::Vocabulary>(
      std::vector<std::string>{"[UNK]", "a", "##a", "##b"});
  std::vector<int64_t> ids;
  text::word_piece(words, 0, "##", INT64_MAX)->encode(std::u32string(1 << 20, U'a') + U'c', ids);
  CHECK(ids == Ids{0});

  Json json{{"model", {{"type", "BPE"}, {"vocab", Json::object()}, {"merges", Json::array()}}}};
  Json& model = json["model"];
  for (int i = 0; i < 100'000; ++i) model["vocab"]["t" + std::to_string(i)] = i;
  json["added_tokens"] = Json::array();
  for (int i = 0; i < 20'000; ++i) {
    const std::string word = "t" + std::to_string(i);
    json["added_tokens"].push_back({{"content", word}, {"id", i}});
    if (i < 10) continue;
    model["vocab"][word + word] = 100'000 + i;
    model["merges"].push_back(word + " " + word);
  }
  CHECK(Tokenizer::from_json(json.dump()).size() == 120'000);
}

TEST_CASE("tokenizers: a template that names a long list many times is refused") {
  Json json{{"model", {{"type", "BPE"}, {"vocab", {{"a", 0}}}, {"merges", Json::array()}}},
            {"post_processor",
             {{"type", "TemplateProcessing"},
              {"single", Json::array()},
              {"pair", Json::array()},
              {"special_tokens", {{"x", {{"ids", std::vector<int>(50'000, 0)}}}}}}}};
  Json& single = json["post_processor"]["single"];
  single.push_back({{"SpecialToken", {{"id", "x"}, {"type_id", 0}}}});
  CHECK(Tokenizer::from_json(json.dump()).encode("").size() == 50'000);
  for (int i = 0; i < 20'000; ++i) single.push_back(single[0]);
  expect_error<FormatError>(
      "Tokenizer: expected a post-processor that adds at most 65536 tokens, got more",
      [&] { Tokenizer::from_json(json.dump()); });
}
