#include <algorithm>
#include <array>

#include "../../core/error.h"
#include "../../core/quote.h"
#include "token_model.h"

namespace sash::text {
namespace {

constexpr int64_t kMostGaps = 65536;  // numbers without a token

}  // namespace

TokenModel::~TokenModel() = default;

Vocabulary::Vocabulary(const std::vector<std::pair<std::string, int64_t>>& tokens) {
  int64_t count = 0;
  for (const auto& [token, id] : tokens) {
    if (id < 0 || id >= kMostTokens) {
      throw FormatError("Vocabulary", "token numbers from 0 to 2^24",
                        std::to_string(id) + " for " + in_quotes(token));
    }
    count = std::max(count, id + 1);
  }
  // Before memory is taken: a short file may name a large number.
  const int64_t most = kMostGaps + 2 * static_cast<int64_t>(tokens.size());
  if (count > most) {
    throw FormatError("Vocabulary",
                      "token numbers below " + std::to_string(most) + " for " +
                          std::to_string(tokens.size()) + " tokens",
                      std::to_string(count - 1));
  }
  tokens_.resize(static_cast<size_t>(count));
  for (const auto& [token, id] : tokens) {
    std::string& place = tokens_[static_cast<size_t>(id)];
    if (!place.empty()) {
      throw FormatError(
          "Vocabulary", "another number for each token",
          std::to_string(id) + " for " + in_quotes(place) + " and " + in_quotes(token));
    }
    place = token;
  }
  for (size_t id = 0; id < tokens_.size(); ++id) {
    if (!tokens_[id].empty()) ids_.emplace(tokens_[id], static_cast<int64_t>(id));
  }
}

Vocabulary::Vocabulary(std::vector<std::string> tokens) : tokens_(std::move(tokens)) {
  for (size_t id = 0; id < tokens_.size(); ++id) {
    ids_.emplace(tokens_[id], static_cast<int64_t>(id));
  }
}

std::optional<std::vector<int64_t>> Vocabulary::bytes(std::string_view text) const {
  constexpr std::string_view digits = "0123456789ABCDEF";
  std::vector<int64_t> ids;
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    const std::array<char, 6> name{'<', '0', 'x', digits[byte >> 4], digits[byte & 15], '>'};
    const std::optional<int64_t> found = id({name.data(), name.size()});
    if (!found) return std::nullopt;
    ids.push_back(*found);
  }
  return ids;
}

}  // namespace sash::text
