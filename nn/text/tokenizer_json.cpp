#include <nlohmann/json.hpp>

#include "../../core/error.h"
#include "../../core/quote.h"
#include "json_text.h"
#include "tokenizer.h"
#include "unicode.h"

namespace sash::text {
namespace {

using Json = nlohmann::json;

constexpr const char* kJsonFile = "Tokenizer";
constexpr size_t kMostTemplateTokens = 65536;

[[noreturn]] void unsupported(const std::string& what, const std::string& name) {
  throw NotImplemented(kJsonFile, "sash has no " + what + " " + in_quotes(name));
}

std::string type_of(const Json& json) { return json.at("type").get<std::string>(); }

std::string string_of(const Json& json, const char* key, const std::string& otherwise) {
  return json.contains(key) && !json[key].is_null() ? json[key].get<std::string>() : otherwise;
}

bool flag(const Json& json, const char* key, bool otherwise) {
  return json.contains(key) && !json[key].is_null() ? json[key].get<bool>() : otherwise;
}

int64_t integer(const Json& json, const char* name, int64_t most = INT64_MAX) {
  return integer_of(kJsonFile, name, json.dump(), 0, most);
}

std::u32string characters(const std::string& text) { return from_utf8(kJsonFile, text); }

Pattern pattern_of(const Json& json) {
  if (json.contains("String")) return Pattern::literal(json["String"].get<std::string>());
  return Pattern(json.at("Regex").get<std::string>());
}

// What `read` makes of each element.
template <class T, class Read>
std::vector<T> list_of(const Json& json, Read&& read) {
  std::vector<T> list;
  for (const Json& item : json) list.push_back(read(item));
  return list;
}

// ---- the parts ----------------------------------------------------------------------------------

// Sequences become one, whose growth is limited as a whole.
template <class Part, class Read>
void append_parts(std::vector<Part>& parts, const Json& json, const char* key, Read&& read) {
  if (type_of(json) != "Sequence") return parts.push_back(read(json));
  for (const Json& part : json.at(key)) append_parts(parts, part, key, read);
}

Normalizer read_normalizer(const Json& json) {
  namespace n = normalizers;
  if (json.is_null()) return {};
  const std::string type = type_of(json);
  if (type == "Sequence") {
    std::vector<Normalizer> parts;
    append_parts(parts, json, "normalizers", read_normalizer);
    return n::sequence(std::move(parts));
  }
  if (type == "NFC") return n::nfc();
  if (type == "NFD") return n::nfd();
  if (type == "NFKC") return n::nfkc();
  if (type == "NFKD") return n::nfkd();
  if (type == "Lowercase") return n::lowercase();
  if (type == "StripAccents") return n::strip_accents();
  if (type == "Strip")
    return n::strip(flag(json, "strip_left", true), flag(json, "strip_right", true));
  if (type == "Prepend") return n::prepend(characters(json.at("prepend").get<std::string>()));
  if (type == "Replace") {
    return n::replace(pattern_of(json.at("pattern")),
                      characters(json.at("content").get<std::string>()));
  }
  if (type == "BertNormalizer") {
    const bool lowercase = flag(json, "lowercase", true);
    return n::bert(flag(json, "clean_text", true), flag(json, "handle_chinese_chars", true),
                   flag(json, "strip_accents", lowercase), lowercase);
  }
  unsupported("normalizer", type);
}

SplitBehavior read_behavior(const Json& json) {
  static const std::pair<const char*, SplitBehavior> known[] = {
      {"Removed", SplitBehavior::removed},
      {"Isolated", SplitBehavior::isolated},
      {"MergedWithPrevious", SplitBehavior::merged_with_previous},
      {"MergedWithNext", SplitBehavior::merged_with_next},
      {"Contiguous", SplitBehavior::contiguous}};
  const std::string name = json.at("behavior").get<std::string>();
  for (const auto& [spelling, behavior] : known) {
    if (name == spelling) return behavior;
  }
  unsupported("way to split", name);
}

// Older files say add_prefix_space.
pre_tokenizers::Prepend read_prepend(const Json& json) {
  using pre_tokenizers::Prepend;
  const std::string scheme =
      string_of(json, "prepend_scheme", flag(json, "add_prefix_space", true) ? "always" : "never");
  if (scheme == "always") return Prepend::always;
  if (scheme == "first") return Prepend::first;
  if (scheme == "never") return Prepend::never;
  unsupported("prepend_scheme", scheme);
}

char32_t read_replacement(const Json& json) {
  const std::u32string replacement = characters(string_of(json, "replacement", "\xe2\x96\x81"));
  if (replacement.size() != 1) {
    throw FormatError(kJsonFile, "a replacement of one character", in_quotes(to_utf8(replacement)));
  }
  return replacement[0];
}

PreTokenizer read_pre_tokenizer(const Json& json) {
  namespace p = pre_tokenizers;
  if (json.is_null()) return {};
  const std::string type = type_of(json);
  if (type == "Sequence") {
    return p::sequence(list_of<PreTokenizer>(json.at("pretokenizers"), read_pre_tokenizer));
  }
  if (type == "ByteLevel") {
    return p::byte_level(flag(json, "add_prefix_space", true), flag(json, "use_regex", true));
  }
  if (type == "Split") {
    return p::split(pattern_of(json.at("pattern")), read_behavior(json),
                    flag(json, "invert", false));
  }
  if (type == "BertPreTokenizer") return p::bert();
  if (type == "Whitespace") return p::whitespace();
  if (type == "WhitespaceSplit") return p::whitespace_split();
  if (type == "Digits") return p::digits(flag(json, "individual_digits", false));
  if (type == "Punctuation") {
    return p::punctuation(json.contains("behavior") ? read_behavior(json)
                                                    : SplitBehavior::isolated);
  }
  if (type == "Metaspace") {
    return p::metaspace(read_replacement(json), read_prepend(json), flag(json, "split", true));
  }
  unsupported("pre-tokenizer", type);
}

TokenDecoder read_decoder(const Json& json) {
  namespace d = token_decoders;
  if (json.is_null()) return {};
  const std::string type = type_of(json);
  if (type == "Sequence") {
    std::vector<TokenDecoder> parts;
    append_parts(parts, json, "decoders", read_decoder);
    return d::sequence(std::move(parts));
  }
  if (type == "ByteLevel") return d::byte_level();
  if (type == "ByteFallback") return d::byte_fallback();
  if (type == "Fuse") return d::fuse();
  if (type == "Replace") {
    return d::replace(pattern_of(json.at("pattern")), json.at("content").get<std::string>());
  }
  if (type == "Strip") {
    return d::strip(json.at("content").get<std::string>(),
                    static_cast<size_t>(integer(json.at("start"), "start")),
                    static_cast<size_t>(integer(json.at("stop"), "stop")));
  }
  if (type == "WordPiece") {
    return d::word_piece(string_of(json, "prefix", "##"), flag(json, "cleanup", true));
  }
  if (type == "Metaspace") {
    return d::metaspace(to_utf8(std::u32string(1, read_replacement(json))),
                        read_prepend(json) != pre_tokenizers::Prepend::never);
  }
  unsupported("decoder", type);
}

std::vector<TemplateItem> read_template(const Json& json, const Json& special_tokens) {
  size_t total = 0;  // each item may name the same long list
  return list_of<TemplateItem>(json, [&](const Json& item) -> TemplateItem {
    const bool special = item.contains("SpecialToken");
    const Json& body = item.at(special ? "SpecialToken" : "Sequence");
    const int64_t type_id = integer(body.at("type_id"), "type_id");
    const auto name = body.at("id").get<std::string>();
    if (!special) {
      return {name == "A" ? TemplateItem::first_text : TemplateItem::second_text, {}, type_id};
    }
    const auto id = [](const Json& token) { return integer(token, "id"); };
    const Json& ids = special_tokens.at(name).at("ids");
    total += ids.size();
    if (total > kMostTemplateTokens) {
      throw FormatError(kJsonFile, "a post-processor that adds at most 65536 tokens", "more");
    }
    return {TemplateItem::special, list_of<int64_t>(ids, id), type_id};
  });
}

void read_post_processor(const Json& json, TokenizerParts& parts) {
  if (json.is_null()) return;
  const std::string type = type_of(json);
  if (type == "ByteLevel") return;  // concerns offsets alone
  if (type == "Sequence") {
    for (const Json& part : json.at("processors")) read_post_processor(part, parts);
    return;
  }
  if (type == "TemplateProcessing") {
    parts.single = read_template(json.at("single"), json.at("special_tokens"));
    parts.pair = read_template(json.at("pair"), json.at("special_tokens"));
    return;
  }
  const bool roberta = type == "RobertaProcessing";
  if (!roberta && type != "BertProcessing") unsupported("post-processor", type);
  // [token, number]
  const TemplateItem cls{TemplateItem::special, {integer(json.at("cls").at(1), "cls")}, 0};
  const TemplateItem sep{TemplateItem::special, {integer(json.at("sep").at(1), "sep")}, 0};
  const int64_t second = roberta ? 0 : 1;
  TemplateItem last = sep;
  last.type_id = second;
  parts.single = {cls, {TemplateItem::first_text, {}, 0}, sep};
  parts.pair = parts.single;
  if (roberta) parts.pair.push_back(sep);
  parts.pair.push_back({TemplateItem::second_text, {}, second});
  parts.pair.push_back(last);
}

std::vector<AddedToken> read_added(const Json& json) {
  return list_of<AddedToken>(json, [](const Json& token) -> AddedToken {
    return {.content = token.at("content").get<std::string>(),
            .id = integer(token.at("id"), "id", kMostTokens - 1),
            .special = flag(token, "special", false),
            .single_word = flag(token, "single_word", false),
            .lstrip = flag(token, "lstrip", false),
            .rstrip = flag(token, "rstrip", false),
            .normalized = flag(token, "normalized", true)};
  });
}

// ---- the models ---------------------------------------------------------------------------------

std::vector<std::pair<std::string, int64_t>> read_numbers(const Json& vocab) {
  std::vector<std::pair<std::string, int64_t>> tokens;
  for (const auto& item : vocab.items()) {
    tokens.emplace_back(item.key(), integer(item.value(), "vocab", kMostTokens - 1));
  }
  return tokens;
}

std::optional<int64_t> read_unknown(const Json& json, const Vocabulary& vocabulary) {
  const std::string unknown = string_of(json, "unk_token", "");
  if (unknown.empty()) return std::nullopt;
  const std::optional<int64_t> id = vocabulary.id(unknown);
  if (!id) throw FormatError(kJsonFile, "unk_token in the vocabulary", in_quotes(unknown));
  return id;
}

// "a b", or ["a", "b"] in newer files.
std::vector<Merge> read_merges(const Json& json, const Vocabulary& vocabulary,
                               const std::string& prefix) {
  std::vector<Merge> merges;
  const auto id_of = [&](const std::string& token) {
    const std::optional<int64_t> id = vocabulary.id(token);
    if (!id) throw FormatError(kJsonFile, "merges of tokens of the vocabulary", in_quotes(token));
    return *id;
  };
  for (const Json& item : json) {
    std::string left, right;
    if (item.is_string()) {
      const auto text = item.get<std::string>();
      const size_t space = text.find(' ');
      if (space == text.npos)
        throw FormatError(kJsonFile, "two tokens in a merge", in_quotes(text));
      left = text.substr(0, space);
      right = text.substr(space + 1);
    } else {
      left = item.at(0).get<std::string>();
      right = item.at(1).get<std::string>();
    }
    const bool prefixed = !prefix.empty() && right.starts_with(prefix);
    const std::string both = left + right.substr(prefixed ? prefix.size() : 0);
    merges.push_back(
        {id_of(left), id_of(right), id_of(both), static_cast<uint32_t>(merges.size())});
  }
  return merges;
}

void read_bpe(const Json& json, TokenizerParts& parts) {
  parts.vocabulary = std::make_shared<const Vocabulary>(read_numbers(json.at("vocab")));
  const std::string prefix = string_of(json, "continuing_subword_prefix", "");
  const BpeOptions options{.unknown = read_unknown(json, *parts.vocabulary),
                           .fuse_unknown = flag(json, "fuse_unk", false),
                           .byte_fallback = flag(json, "byte_fallback", false),
                           .ignore_merges = flag(json, "ignore_merges", false),
                           .prefix = prefix,
                           .suffix = string_of(json, "end_of_word_suffix", "")};
  parts.model =
      bpe(parts.vocabulary, read_merges(json.at("merges"), *parts.vocabulary, prefix), options);
}

// WordPiece, or WordLevel.
void read_words(const Json& json, TokenizerParts& parts, const std::string& type) {
  parts.vocabulary = std::make_shared<const Vocabulary>(read_numbers(json.at("vocab")));
  const std::optional<int64_t> unknown = read_unknown(json, *parts.vocabulary);
  if (!unknown) throw FormatError(kJsonFile, "an unk_token for " + type, "none");
  if (type == "WordLevel") {
    parts.model = word_level(parts.vocabulary, *unknown);
    return;
  }
  const char* const most = "max_input_chars_per_word";
  parts.model =
      word_piece(parts.vocabulary, *unknown, string_of(json, "continuing_subword_prefix", "##"),
                 json.contains(most) ? integer(json[most], most) : 100);
}

void read_unigram(const Json& json, TokenizerParts& parts) {
  std::vector<std::string> tokens;
  std::vector<double> scores;
  for (const Json& item : json.at("vocab")) {
    tokens.push_back(item.at(0).get<std::string>());
    scores.push_back(item.at(1).get<double>());
  }
  parts.vocabulary = std::make_shared<const Vocabulary>(std::move(tokens));
  std::optional<int64_t> unknown;
  if (json.contains("unk_id") && !json["unk_id"].is_null()) {
    unknown = integer(json["unk_id"], "unk_id", parts.vocabulary->size() - 1);
  }
  parts.model =
      unigram(parts.vocabulary, std::move(scores), unknown, flag(json, "byte_fallback", false));
}

// Older files of these types do not name them.
std::string model_type(const Json& json) {
  if (json.contains("type")) return type_of(json);
  if (json.contains("merges")) return "BPE";
  return json.at("vocab").is_array() ? "Unigram" : "WordPiece";
}

void read_model(const Json& json, TokenizerParts& parts) {
  const std::string type = model_type(json);
  if (type == "BPE") return read_bpe(json, parts);
  if (type == "WordPiece" || type == "WordLevel") return read_words(json, parts, type);
  if (type == "Unigram") return read_unigram(json, parts);
  unsupported("model", type);
}

}  // namespace

Tokenizer Tokenizer::from_json(std::string_view text) try {
  const Json json = Json::parse(checked_depth(kJsonFile, text));
  TokenizerParts parts;
  read_model(json.at("model"), parts);
  parts.normalizer = read_normalizer(json.value("normalizer", Json()));
  parts.pre_tokenizer = read_pre_tokenizer(json.value("pre_tokenizer", Json()));
  parts.decoder = read_decoder(json.value("decoder", Json()));
  read_post_processor(json.value("post_processor", Json()), parts);
  parts.added = read_added(json.value("added_tokens", Json::array()));
  return Tokenizer(std::move(parts));
} catch (const Json::exception& error) {
  throw FormatError(kJsonFile, "a valid tokenizer.json", excerpt(error.what(), 200));
}

Tokenizer Tokenizer::load(const std::string& path) {
  const std::string text = read_text(kJsonFile, path);
  try {
    return from_json(text);
  } catch (Error& error) {
    error.append("in '" + path + "'");
    throw;
  }
}

}  // namespace sash::text
