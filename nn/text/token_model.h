#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "../../core/export.h"

namespace sash::text {

/// Token numbers are below this limit.
constexpr int64_t kMostTokens = 1 << 24;

/// Finds tokens by number and numbers by token.
class SASH_API Vocabulary {
 public:
  /// Pairs of token and number. A number without a token has the token "". Throws `FormatError` if
  /// two tokens have the same number, or if more than 65,536 numbers and as many again as there
  /// are tokens have none.
  explicit Vocabulary(const std::vector<std::pair<std::string, int64_t>>& tokens);
  /// Tokens are numbered from 0. If tokens are equal, `id` finds the first.
  explicit Vocabulary(std::vector<std::string> tokens);

  int64_t size() const { return static_cast<int64_t>(tokens_.size()); }
  const std::string& token(int64_t id) const { return tokens_[static_cast<size_t>(id)]; }
  std::optional<int64_t> id(std::string_view token) const {
    const auto found = ids_.find(token);
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }
  /// The byte tokens <0x..> of `text`; nullopt if the vocabulary lacks one of them.
  std::optional<std::vector<int64_t>> bytes(std::string_view text) const;

  Vocabulary(Vocabulary&&) = default;
  Vocabulary(const Vocabulary&) = delete;

 private:
  std::vector<std::string> tokens_;
  std::unordered_map<std::string_view, int64_t> ids_;  // views of tokens_
};

/// Turns a piece of text into tokens.
class SASH_API TokenModel {
 public:
  virtual ~TokenModel();
  /// Appends the tokens of `piece`.
  virtual void encode(std::u32string_view piece, std::vector<int64_t>& ids) const = 0;
};

struct BpeOptions {
  /// The token for a character that is not in the vocabulary. Nullopt: such characters are left
  /// out.
  std::optional<int64_t> unknown{};
  bool fuse_unknown = false;   ///< one `unknown` for a run of such characters
  bool byte_fallback = false;  ///< such characters become their byte tokens <0x..>
  bool ignore_merges = false;  ///< a piece that is in the vocabulary is not split
  std::string prefix{};        ///< added to the characters of a piece after its first
  std::string suffix{};        ///< added to the last character of a piece
};

/// Two neighbouring tokens that become one token. The pair with the lowest rank is merged first;
/// among equal ranks, the leftmost.
struct Merge {
  int64_t left, right, result;
  uint32_t rank;
};

/// Byte pair encoding (Sennrich et al., 2016).
SASH_API std::unique_ptr<TokenModel> bpe(std::shared_ptr<const Vocabulary> vocabulary,
                                         const std::vector<Merge>& merges,
                                         const BpeOptions& options);
/// The merges of a SentencePiece vocabulary, which has scores instead of ranks: every two tokens
/// whose joined text is a token. The highest score has the lowest rank.
SASH_API std::vector<Merge> merges_of_scores(const Vocabulary& vocabulary,
                                             const std::vector<double>& scores);

/// WordPiece (Wu et al., 2016): takes the longest token with which the word begins, then puts
/// `prefix` before the rest and repeats. A word becomes `unknown` if no token fits at some point,
/// or if it is longer than `max_characters`.
SASH_API std::unique_ptr<TokenModel> word_piece(std::shared_ptr<const Vocabulary> vocabulary,
                                                int64_t unknown, const std::string& prefix,
                                                int64_t max_characters);

/// Each piece is a token, or `unknown`.
SASH_API std::unique_ptr<TokenModel> word_level(std::shared_ptr<const Vocabulary> vocabulary,
                                                int64_t unknown);

/// Unigram (Kudo, 2018): the split whose scores have the largest sum. A run of characters that are
/// not in the vocabulary becomes one `unknown`, or with `byte_fallback` its byte tokens.
SASH_API std::unique_ptr<TokenModel> unigram(std::shared_ptr<const Vocabulary> vocabulary,
                                             std::vector<double> scores,
                                             std::optional<int64_t> unknown, bool byte_fallback);

}  // namespace sash::text
