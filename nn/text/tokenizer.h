#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "added_tokens.h"
#include "pre_tokenizer.h"
#include "token_decoder.h"
#include "token_model.h"

namespace sash {
class GgufFile;
}

namespace sash::text {

/// Tokens, and which of two texts each belongs to.
struct Encoding {
  std::vector<int64_t> ids{};
  std::vector<int64_t> type_ids{};
};

/// Where special tokens stand among those of a text, or of two.
struct TemplateItem {
  enum Kind { special, first_text, second_text };
  Kind kind = special;
  std::vector<int64_t> ids{};  ///< of `special`
  int64_t type_id = 0;
};

/// What a tokenizer is made of.
struct TokenizerParts {
  std::shared_ptr<const Vocabulary> vocabulary{};
  std::shared_ptr<const TokenModel> model{};
  Normalizer normalizer{};  ///< these may be empty
  PreTokenizer pre_tokenizer{};
  TokenDecoder decoder{};
  std::vector<TemplateItem> single{{.kind = TemplateItem::first_text}};
  std::vector<TemplateItem> pair{{.kind = TemplateItem::first_text},
                                 {.kind = TemplateItem::second_text, .type_id = 1}};
  std::vector<AddedToken> added{};
};

/// Turns text into the numbers of tokens and back, as the library `tokenizers` (Hugging Face) does
/// from the same `tokenizer.json`.
///
///     const auto tokenizer = text::Tokenizer::load("model/tokenizer.json");
///     const std::vector<int64_t> ids = tokenizer.encode("Hello");
///
/// Text is UTF-8; else `ValueError`. Copies share their parts. Several threads may use one.
class SASH_API Tokenizer {
 public:
  explicit Tokenizer(TokenizerParts parts);

  /// Reads a `tokenizer.json`: BPE, WordPiece or Unigram, with the normalizers, pre-tokenizers,
  /// post-processors and decoders of today's models. Its truncation and padding are not applied.
  /// `IoError`, `FormatError` also for numbers of tokens that are out of range, and
  /// `NotImplemented` naming a part that sash does not have.
  static Tokenizer load(const std::string& path);
  /// The same from its text.
  static Tokenizer from_json(std::string_view json);
  /// The vocabulary of a GGUF file: byte-level BPE ("gpt2") or SentencePiece's ("llama").
  /// `FormatError`, also of a byte-level vocabulary without `tokenizer.ggml.pre`, which says how
  /// text is split; `NotImplemented` for another kind, or a way of splitting that sash does not
  /// know.
  static Tokenizer from_gguf(const GgufFile& file);

  /// The tokens of a text; added tokens in it are found. With `special_tokens`, those that the
  /// model expects stand around them.
  std::vector<int64_t> encode(std::string_view text, bool special_tokens = true) const;
  /// The same of two texts, for models that compare them.
  Encoding encode_pair(std::string_view a, std::string_view b, bool special_tokens = true) const;
  /// The text of tokens, without special ones unless `keep_special`. Bytes that are not UTF-8
  /// become U+FFFD, so that the text of the first tokens need not begin the text of all.
  /// `IndexError` for a number that is no token's.
  std::string decode(const std::vector<int64_t>& ids, bool keep_special = false) const;

  /// One more than the largest number of a token.
  int64_t size() const;
  /// "" for a number that no token has.
  const std::string& token(int64_t id) const;
  std::optional<int64_t> id(std::string_view token) const;
  bool is_special(int64_t id) const;

 private:
  struct State;
  std::vector<int64_t> encode_text(std::string_view text) const;

  std::shared_ptr<const State> state_;
};

}  // namespace sash::text
