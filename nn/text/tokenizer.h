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

/// Tokens, and for each token the number of the text that it belongs to (0 or 1).
struct Encoding {
  std::vector<int64_t> ids{};
  std::vector<int64_t> type_ids{};
};

/// An item of the template that places special tokens around one text, or around two.
struct TemplateItem {
  enum Kind { special, first_text, second_text };
  Kind kind = special;
  std::vector<int64_t> ids{};  ///< the special tokens, if `kind` is `special`
  int64_t type_id = 0;
};

/// The parts of a tokenizer. Functions may be empty.
struct TokenizerParts {
  std::shared_ptr<const Vocabulary> vocabulary{};
  std::shared_ptr<const TokenModel> model{};
  Normalizer normalizer{};
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
/// Texts that are not UTF-8 throw `ValueError`. Copies share their parts. Several threads may use
/// one tokenizer.
class SASH_API Tokenizer {
 public:
  explicit Tokenizer(TokenizerParts parts);

  /// Reads a `tokenizer.json`: BPE, WordPiece, WordLevel or Unigram, with the normalizers,
  /// pre-tokenizers, post-processors and decoders of today's models. Truncation and padding are not
  /// applied. Throws `IoError`; `FormatError` for invalid files, for example token numbers out of
  /// range; `NotImplemented` for an unsupported part, which the error names.
  static Tokenizer load(const std::string& path);
  /// Reads the text of a `tokenizer.json`.
  static Tokenizer from_json(std::string_view json);
  /// Reads the vocabulary of a GGUF file: byte-level BPE ("gpt2") or SentencePiece ("llama").
  /// Throws `FormatError`, also if a byte-level vocabulary lacks `tokenizer.ggml.pre`, which says
  /// how text is split; `NotImplemented` for another vocabulary or an unknown way of splitting.
  static Tokenizer from_gguf(const GgufFile& file);

  /// The tokens of a text. Added tokens in the text are found. With `special_tokens`, the special
  /// tokens that the model expects are placed around them.
  std::vector<int64_t> encode(std::string_view text, bool special_tokens = true) const;
  /// The tokens of two texts, for models that compare them.
  Encoding encode_pair(std::string_view a, std::string_view b, bool special_tokens = true) const;
  /// The text of tokens. Special tokens are left out unless `keep_special` is set. Bytes that are
  /// not UTF-8 become U+FFFD. So the text of the first tokens need not be the start of the text of
  /// all tokens. Throws `IndexError` for a number without a token.
  std::string decode(const std::vector<int64_t>& ids, bool keep_special = false) const;

  /// The largest token number plus 1.
  int64_t size() const;
  /// The token with this number; "" if there is none.
  const std::string& token(int64_t id) const;
  std::optional<int64_t> id(std::string_view token) const;
  bool is_special(int64_t id) const;

 private:
  struct State;
  std::vector<int64_t> encode_text(std::string_view text) const;

  std::shared_ptr<const State> state_;
};

}  // namespace sash::text
