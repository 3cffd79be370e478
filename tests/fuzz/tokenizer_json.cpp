// A tokenizer.json, a byte of 0, and a text to encode with it.
#include <nlohmann/json.hpp>

#include <sash/nn/text/tokenizer.h>

#include "support/fuzz.h"

namespace sash::fuzz {

const std::vector<std::string> words{"\"model\":",
                                     "\"type\":",
                                     "\"vocab\":",
                                     "\"merges\":",
                                     "\"BPE\"",
                                     "\"WordPiece\"",
                                     "\"WordLevel\"",
                                     "\"Unigram\"",
                                     "\"unk_token\":",
                                     "\"unk_id\":",
                                     "\"byte_fallback\":true",
                                     "\"fuse_unk\":true",
                                     "\"ignore_merges\":true",
                                     "\"continuing_subword_prefix\":\"##\"",
                                     "\"end_of_word_suffix\":",
                                     "\"normalizer\":",
                                     "\"pre_tokenizer\":",
                                     "\"decoder\":",
                                     "\"post_processor\":",
                                     "\"added_tokens\":",
                                     "\"Sequence\"",
                                     "\"ByteLevel\"",
                                     "\"Metaspace\"",
                                     "\"Split\"",
                                     "\"Digits\"",
                                     "\"Replace\"",
                                     "\"Strip\"",
                                     "\"Prepend\"",
                                     "\"NFKC\"",
                                     "\"Lowercase\"",
                                     "\"BertNormalizer\"",
                                     "\"BertPreTokenizer\"",
                                     "\"TemplateProcessing\"",
                                     "\"ByteFallback\"",
                                     "\"Fuse\"",
                                     "\"pattern\":{\"Regex\":\"a*\"}",
                                     "\"pattern\":{\"String\":\"a\"}",
                                     "\"content\":",
                                     "\"behavior\":\"MergedWithNext\"",
                                     "\"max_input_chars_per_word\":1000000",
                                     "16777215",
                                     "-1",
                                     "1e400",
                                     "<0x41>",
                                     "<0x-1>",
                                     "\"start\":",
                                     "\"stop\":",
                                     "\"id\":",
                                     "[",
                                     "]",
                                     "{",
                                     "}",
                                     ",",
                                     "null",
                                     std::string(1, '\0'),
                                     "\xe2\x96\x81",
                                     "aaaa",
                                     "\"\""};

std::vector<std::string> seeds() {
  using Json = nlohmann::json;
  const std::string text = std::string(1, '\0') + "the tale of a cab, 12 aa<|end|>";
  std::vector<std::string> all;
  for (Json& row : Json::parse(parity_file("tokenizers.json"))) {
    Json& tokenizer = row["tokenizer"];
    Json& model = tokenizer["model"];
    // Small enough to change: the tokens of one letter and some more.
    if (model.contains("merges")) {
      Json merges = Json::array();
      for (const Json& merge : model["merges"]) {
        if (merges.size() < 4) merges.push_back(merge);
      }
      model["merges"] = merges;
    }
    all.push_back(tokenizer.dump() + text);
  }
  const auto small = [&](const std::string& model, const std::string& parts = "") {
    all.push_back("{" + parts + "\"model\":" + model + "}" + text);
  };
  small(R"({"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"],"unk_token":"a"})");
  small(R"({"type":"WordPiece","vocab":{"[UNK]":0,"a":1,"##a":2},"unk_token":"[UNK]"})",
        R"("normalizer":{"type":"BertNormalizer"},"pre_tokenizer":{"type":"BertPreTokenizer"},)");
  small(R"({"type":"Unigram","vocab":[["<unk>",0],["a",-1],["aa",-1.5]],"unk_id":0})",
        R"("pre_tokenizer":{"type":"Metaspace"},"decoder":{"type":"Metaspace"},)");
  small(R"({"type":"WordLevel","vocab":{"a":0,"the":1},"unk_token":"a"})",
        R"("pre_tokenizer":{"type":"Split","pattern":{"Regex":"\\s+"},"behavior":"Isolated"},)");
  return all;
}

void run(Bytes& bytes) {
  memory_factor = 600;  // a character may be a piece, in arrays of matches, parts and pieces
  const std::string all = bytes.ConsumeRemainingBytesAsString();
  const size_t end = std::min(all.find('\0'), all.size());
  const text::Tokenizer tokenizer = text::Tokenizer::from_json(all.substr(0, end));
  const std::string text = end < all.size() ? all.substr(end + 1) : "a b";
  const std::vector<int64_t> ids = tokenizer.encode(text);
  for (const int64_t id : ids) require(id >= 0, "tokens are in range");
  tokenizer.decode(ids);
  tokenizer.encode_pair(text.substr(0, 100), "a", false);
}

}  // namespace sash::fuzz
