#include "../../core/error.h"
#include "../../core/quote.h"
#include "../../tensor/io/gguf.h"
#include "tokenizer.h"
#include "unicode.h"

namespace sash::text {
namespace {

constexpr const char* kGguf = "Tokenizer";
constexpr const char* kSpace = "\xe2\x96\x81";  // U+2581, SentencePiece's space

// What `tokenizer.ggml.token_type` says.
enum Type : int64_t { normal = 1, unknown, control, user_defined, unused, byte };

// The ways to split by `tokenizer.ggml.pre`; each expression splits what the one before left.
constexpr const char* kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kGpt4o =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

std::vector<std::string> split_patterns(const std::string& pre) {
  static const std::pair<const char*, std::vector<std::string>> known[] = {
      {"gpt-2", {kGpt2Pattern}},
      {"olmo", {kGpt2Pattern}},
      {"smollm", {R"(\p{N})", kGpt2Pattern}},
      {"starcoder", {R"(\p{N})", kGpt2Pattern}},
      {"llama-bpe", {kLlama3Pattern}},
      {"dbrx", {kLlama3Pattern}},
      {"qwen2", {kQwen2}},
      {"gpt-4o", {kGpt4o}},
      {"tekken", {kTekken}},
  };
  for (const auto& [name, patterns] : known) {
    if (pre == name) return patterns;
  }
  std::string choices;
  for (const auto& [name, patterns] : known)
    choices += (choices.empty() ? "" : ", ") + std::string(name);
  if (pre.empty()) {
    throw FormatError(kGguf, "tokenizer.ggml.pre of a byte-level vocabulary: " + choices, "none");
  }
  throw NotImplemented(kGguf, "sash does not know how tokenizer.ggml.pre " + in_quotes(pre) +
                                  " splits text, but " + choices);
}

PreTokenizer byte_level(const std::string& pre) {
  std::vector<PreTokenizer> parts;
  for (const std::string& pattern : split_patterns(pre)) {
    parts.push_back(pre_tokenizers::split(Pattern(pattern), SplitBehavior::isolated));
  }
  parts.push_back(pre_tokenizers::byte_level(false, false));
  return pre_tokenizers::sequence(parts);
}

std::vector<Merge> read_merges(const GgufFile& file, const Vocabulary& vocabulary) {
  std::vector<Merge> merges;
  for (const std::string& text : file.list<std::string>("tokenizer.ggml.merges")) {
    const size_t space = text.find(' ', 1);
    const std::string left = text.substr(0, space);
    const std::string right = space == text.npos ? "" : text.substr(space + 1);
    const auto a = vocabulary.id(left), b = vocabulary.id(right),
               both = vocabulary.id(left + right);
    if (!a || !b || !both) {
      throw FormatError(kGguf, "merges of tokens of the vocabulary", in_quotes(text));
    }
    merges.push_back({*a, *b, *both, static_cast<uint32_t>(merges.size())});
  }
  return merges;
}

void read_gpt2(const GgufFile& file, TokenizerParts& parts, const std::string& pre) {
  parts.pre_tokenizer = byte_level(pre);
  parts.decoder = token_decoders::byte_level();
  parts.model = bpe(parts.vocabulary, read_merges(file, *parts.vocabulary),
                    {.ignore_merges = pre == "llama-bpe" || pre == "tekken"});
}

void read_llama(const GgufFile& file, TokenizerParts& parts, std::optional<int64_t> unknown_id) {
  const bool prefix = file.get<bool>("tokenizer.ggml.add_space_prefix", true);
  std::vector<Normalizer> normalizer;
  if (prefix) normalizer.push_back(normalizers::prepend(from_utf8(kGguf, kSpace)));
  normalizer.push_back(normalizers::replace(Pattern::literal(" "), from_utf8(kGguf, kSpace)));
  parts.normalizer = normalizers::sequence(normalizer);
  parts.decoder = token_decoders::sequence({token_decoders::replace(Pattern::literal(kSpace), " "),
                                            token_decoders::byte_fallback(), token_decoders::fuse(),
                                            token_decoders::strip(" ", prefix ? 1 : 0, 0)});
  const std::vector<double> scores = file.list<double>("tokenizer.ggml.scores");
  parts.model = bpe(parts.vocabulary, merges_of_scores(*parts.vocabulary, scores),
                    {.unknown = unknown_id, .fuse_unknown = true, .byte_fallback = true});
}

std::optional<int64_t> special_id(const GgufFile& file, const std::string& name, int64_t size) {
  const std::string key = "tokenizer.ggml." + name + "_token_id";
  if (!file.has(key)) return std::nullopt;
  const auto id = file.get<int64_t>(key);
  if (id < 0 || id >= size) {
    throw FormatError(kGguf, key + " below " + std::to_string(size), std::to_string(id));
  }
  return id;
}

// Without types in the file, all tokens are normal but those that it names for a purpose.
std::vector<int64_t> token_types(const GgufFile& file, int64_t size) {
  const char* const key = "tokenizer.ggml.token_type";
  if (file.has(key)) return file.list<int64_t>(key);
  std::vector<int64_t> types(static_cast<size_t>(size), normal);
  for (const char* name : {"bos", "eos", "eot", "eom", "unknown", "padding"}) {
    if (const auto id = special_id(file, name, size)) types[static_cast<size_t>(*id)] = control;
  }
  return types;
}

// The tokens before and behind every text.
void add_ends(const GgufFile& file, TokenizerParts& parts, bool begins) {
  const auto add = [&](const char* name, bool wanted, bool front) {
    const auto id = special_id(file, name, parts.vocabulary->size());
    if (!id || !file.get<bool>(std::string("tokenizer.ggml.add_") + name + "_token", wanted))
      return;
    const TemplateItem item{TemplateItem::special, {*id}, 0};
    for (auto* const items : {&parts.single, &parts.pair}) {
      items->insert(front ? items->begin() : items->end(), item);
    }
  };
  add("bos", begins, true);
  add("eos", false, false);
}

}  // namespace

Tokenizer Tokenizer::from_gguf(const GgufFile& file) try {
  TokenizerParts parts;
  parts.vocabulary =
      std::make_shared<const Vocabulary>(file.list<std::string>("tokenizer.ggml.tokens"));
  const auto types = token_types(file, parts.vocabulary->size());
  if (types.size() != static_cast<size_t>(parts.vocabulary->size())) {
    throw FormatError(
        kGguf, "a token_type for each of " + std::to_string(parts.vocabulary->size()) + " tokens",
        std::to_string(types.size()));
  }
  for (size_t i = 0; i < types.size(); ++i) {
    if (types[i] != control && types[i] != user_defined && types[i] != unknown) continue;
    const auto id = static_cast<int64_t>(i);
    parts.added.push_back(
        {.content = parts.vocabulary->token(id), .id = id, .special = types[i] != user_defined});
  }
  const auto model = file.get<std::string>("tokenizer.ggml.model");
  if (model == "gpt2") {
    const auto pre = file.get<std::string>("tokenizer.ggml.pre", "");
    read_gpt2(file, parts, pre);
    add_ends(file, parts, pre == "llama-bpe" || pre == "tekken");
  } else if (model == "llama") {
    read_llama(file, parts, special_id(file, "unknown", parts.vocabulary->size()));
    add_ends(file, parts, true);
  } else {
    throw NotImplemented(kGguf, "sash has no tokenizer.ggml.model " + in_quotes(model));
  }
  return Tokenizer(std::move(parts));
} catch (Error& error) {
  if (std::string_view(error.what()).find(file.path()) == std::string_view::npos) {
    error.append("in '" + file.path() + "'");
  }
  throw;
}

}  // namespace sash::text
