#include <algorithm>
#include <cmath>
#include <queue>
#include <set>
#include <tuple>

#include "../../core/error.h"
#include "../../core/quote.h"
#include "token_model.h"
#include "unicode.h"

namespace sash::text {
namespace {

uint64_t pair_of(int64_t left, int64_t right) {
  return static_cast<uint64_t>(left) << 32 | static_cast<uint64_t>(right);
}

// Symbols of a piece, as a list: what a merge leaves over is skipped.
struct Symbol {
  int64_t id;
  int64_t last, next;  // neighbours, or -1
};

struct Candidate {
  uint32_t rank;
  int64_t at;  // of the left symbol
  int64_t left, right, result;

  // The queue gives the largest first.
  friend bool operator<(const Candidate& a, const Candidate& b) {
    return std::tie(a.rank, a.at) > std::tie(b.rank, b.at);
  }
};

class Bpe : public TokenModel {
 public:
  Bpe(std::shared_ptr<const Vocabulary> vocabulary, const std::vector<Merge>& merges,
      const BpeOptions& options)
      : vocabulary_(std::move(vocabulary)), options_(options) {
    merges_.reserve(merges.size());
    for (const Merge& merge : merges) {
      merges_.emplace(pair_of(merge.left, merge.right), std::pair(merge.rank, merge.result));
    }
  }

  void encode(std::u32string_view piece, std::vector<int64_t>& ids) const override {
    if (options_.ignore_merges) {
      if (const auto whole = vocabulary_->id(to_utf8(piece))) {
        ids.push_back(*whole);
        return;
      }
    }
    std::vector<Symbol> symbols = symbols_of(piece);
    merge(symbols);
    for (int64_t at = symbols.empty() ? -1 : 0; at >= 0; at = symbols[static_cast<size_t>(at)].next)
      ids.push_back(symbols[static_cast<size_t>(at)].id);
  }

 private:
  std::vector<Symbol> symbols_of(std::u32string_view piece) const {
    std::vector<Symbol> symbols;
    const auto push = [&symbols](int64_t id) {
      const auto at = static_cast<int64_t>(symbols.size());
      symbols.push_back({id, at - 1, at + 1});
    };
    bool after_unknown = false;
    std::string character;
    for (size_t i = 0; i < piece.size(); ++i) {
      character = i > 0 ? options_.prefix : "";
      append_utf8(character, piece[i]);
      if (i + 1 == piece.size()) character += options_.suffix;
      bool unknown = false;
      if (const auto id = vocabulary_->id(character)) {
        push(*id);
      } else if (const auto bytes = options_.byte_fallback
                                        ? vocabulary_->bytes(character)
                                        : std::optional<std::vector<int64_t>>()) {
        for (const int64_t byte : *bytes) push(byte);
      } else if (options_.unknown) {
        unknown = true;
        if (!(options_.fuse_unknown && after_unknown)) push(*options_.unknown);
      }
      after_unknown = unknown;
    }
    if (!symbols.empty()) symbols.back().next = -1;
    return symbols;
  }

  void merge(std::vector<Symbol>& symbols) const {
    std::priority_queue<Candidate> queue;
    const auto symbol = [&symbols](int64_t at) -> Symbol& {
      return symbols[static_cast<size_t>(at)];
    };
    const auto offer = [&](int64_t at) {
      if (at < 0 || symbol(at).next < 0) return;
      const int64_t left = symbol(at).id, right = symbol(symbol(at).next).id;
      const auto found = merges_.find(pair_of(left, right));
      if (found != merges_.end()) {
        queue.push({found->second.first, at, left, right, found->second.second});
      }
    };
    for (size_t at = 0; at + 1 < symbols.size(); ++at) offer(static_cast<int64_t>(at));
    while (!queue.empty()) {
      const Candidate best = queue.top();
      queue.pop();
      Symbol& left = symbol(best.at);
      // Either symbol may have been merged meanwhile.
      if (left.id != best.left || left.next < 0 || symbol(left.next).id != best.right) continue;
      symbol(left.next).id = -1;
      left.id = best.result;
      left.next = symbol(left.next).next;
      if (left.next >= 0) symbol(left.next).last = best.at;
      offer(left.last);
      offer(best.at);
    }
  }

  std::shared_ptr<const Vocabulary> vocabulary_;
  BpeOptions options_;
  std::unordered_map<uint64_t, std::pair<uint32_t, int64_t>> merges_;
};

}  // namespace

std::unique_ptr<TokenModel> bpe(std::shared_ptr<const Vocabulary> vocabulary,
                                const std::vector<Merge>& merges, const BpeOptions& options) {
  return std::make_unique<Bpe>(std::move(vocabulary), merges, options);
}

std::vector<Merge> merges_of_scores(const Vocabulary& vocabulary,
                                    const std::vector<double>& scores) {
  if (scores.size() != static_cast<size_t>(vocabulary.size())) {
    throw FormatError("Vocabulary",
                      "a score for each of " + std::to_string(vocabulary.size()) + " tokens",
                      std::to_string(scores.size()));
  }
  for (int64_t id = 0; id < vocabulary.size(); ++id) {
    if (!std::isnan(scores[static_cast<size_t>(id)])) continue;
    throw FormatError("Vocabulary", "scores that are numbers",
                      "NaN for " + in_quotes(vocabulary.token(id)));
  }
  std::vector<double> levels = scores;  // distinct, the highest first
  std::sort(levels.begin(), levels.end(), std::greater<>());
  levels.erase(std::unique(levels.begin(), levels.end()), levels.end());
  // Only cuts into two lengths that tokens have are looked up. N bytes of tokens have at most
  // sqrt(2 N) lengths.
  std::set<size_t> lengths;
  for (int64_t id = 0; id < vocabulary.size(); ++id) lengths.insert(vocabulary.token(id).size());
  std::vector<Merge> merges;
  for (int64_t id = 0; id < vocabulary.size(); ++id) {
    const std::string& token = vocabulary.token(id);
    const auto level = std::lower_bound(levels.begin(), levels.end(),
                                        scores[static_cast<size_t>(id)], std::greater<>());
    const auto rank = static_cast<uint32_t>(level - levels.begin());
    for (const size_t cut : lengths) {
      if (cut >= token.size()) break;
      if (cut == 0 || !lengths.count(token.size() - cut)) continue;
      const auto left = vocabulary.id(std::string_view(token).substr(0, cut));
      const auto right = vocabulary.id(std::string_view(token).substr(cut));
      if (left && right) merges.push_back({*left, *right, id, rank});
    }
  }
  return merges;
}

}  // namespace sash::text
