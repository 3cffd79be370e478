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

/// The numbers of tokens are below this.
constexpr int64_t kMostTokens = 1 << 24;

/// Tokens by number, and numbers by token.
class SASH_API Vocabulary {
 public:
  /// `FormatError` if two tokens have one number. Numbers in between may have none: "".
  explicit Vocabulary(const std::vector<std::pair<std::string, int64_t>>& tokens);
  /// Numbered from 0. Of equal ones, the first is found.
  explicit Vocabulary(std::vector<std::string> tokens);

  int64_t size() const { return static_cast<int64_t>(tokens_.size()); }
  const std::string& token(int64_t id) const { return tokens_[static_cast<size_t>(id)]; }
  std::optional<int64_t> id(std::string_view token) const {
    const auto found = ids_.find(token);
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }
  /// The tokens <0x..> of the bytes of `text`, or nothing if one has none.
  std::optional<std::vector<int64_t>> bytes(std::string_view text) const;

  Vocabulary(Vocabulary&&) = default;
  Vocabulary(const Vocabulary&) = delete;

 private:
  std::vector<std::string> tokens_;
  std::unordered_map<std::string_view, int64_t> ids_;  // views of tokens_
};

/// How a piece of text becomes tokens.
class SASH_API TokenModel {
 public:
  virtual ~TokenModel();
  /// Appends the tokens of `piece`.
  virtual void encode(std::u32string_view piece, std::vector<int64_t>& ids) const = 0;
};

struct BpeOptions {
  /// Of a character that is no token; none: such characters are left out.
  std::optional<int64_t> unknown{};
  bool fuse_unknown = false;   ///< one for a run of them
  bool byte_fallback = false;  ///< such characters become the tokens <0x..> of their bytes
  bool ignore_merges = false;  ///< a piece that is a token is that
  std::string prefix{};        ///< of characters that do not begin a piece
  std::string suffix{};        ///< of the one that ends it
};

/// Two neighbours that become a token; of all such pairs, the lowest rank does first, and of equal
/// ones the leftmost.
struct Merge {
  int64_t left, right, result;
  uint32_t rank;
};

/// Byte pair encoding (Sennrich et al., 2016).
SASH_API std::unique_ptr<TokenModel> bpe(std::shared_ptr<const Vocabulary> vocabulary,
                                         const std::vector<Merge>& merges,
                                         const BpeOptions& options);
/// The merges that SentencePiece makes from scores: any two tokens whose text together is a token,
/// of the highest score first.
SASH_API std::vector<Merge> merges_of_scores(const Vocabulary& vocabulary,
                                             const std::vector<double>& scores);

/// The longest token that a word begins with, then that of the rest with `prefix`, and so on; a
/// word for which there is none, or that is longer than `max_characters`, is `unknown` (Wu et al.,
/// 2016).
SASH_API std::unique_ptr<TokenModel> word_piece(std::shared_ptr<const Vocabulary> vocabulary,
                                                int64_t unknown, const std::string& prefix,
                                                int64_t max_characters);

/// The tokens of the largest sum of scores (Kudo, 2018). Runs of characters that are no token
/// become one `unknown`, or with `byte_fallback` their bytes.
SASH_API std::unique_ptr<TokenModel> unigram(std::shared_ptr<const Vocabulary> vocabulary,
                                             std::vector<double> scores,
                                             std::optional<int64_t> unknown, bool byte_fallback);

}  // namespace sash::text
