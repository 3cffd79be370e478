#include <algorithm>
#include <limits>

#include "../../core/error.h"
#include "token_model.h"
#include "unicode.h"

namespace sash::text {
namespace {

constexpr double kUnknownPenalty = 10;  // below the lowest score, as SentencePiece has it

class Unigram : public TokenModel {
 public:
  Unigram(std::shared_ptr<const Vocabulary> vocabulary, std::vector<double> scores,
          std::optional<int64_t> unknown, bool byte_fallback)
      : vocabulary_(std::move(vocabulary)),
        scores_(std::move(scores)),
        unknown_(unknown),
        byte_fallback_(byte_fallback) {
    if (scores_.size() != static_cast<size_t>(vocabulary_->size())) {
      throw FormatError("Vocabulary",
                        "a score for each of " + std::to_string(vocabulary_->size()) + " tokens",
                        std::to_string(scores_.size()));
    }
    for (int64_t id = 0; id < vocabulary_->size(); ++id) {
      longest_ = std::max(longest_, vocabulary_->token(id).size());
    }
    unknown_score_ = scores_.empty() ? 0 : *std::min_element(scores_.begin(), scores_.end());
    unknown_score_ -= kUnknownPenalty;
  }

  void encode(std::u32string_view piece, std::vector<int64_t>& ids) const override {
    const std::vector<Step> best = best_steps(piece);
    std::vector<size_t> ends;  // the last first
    for (size_t at = piece.size(); at > 0; at = best[at].from) ends.push_back(at);
    size_t unknown_from = piece.size();
    for (auto end = ends.rbegin(); end != ends.rend(); ++end) {
      const Step& step = best[*end];
      if (step.id < 0) {
        unknown_from = std::min(unknown_from, step.from);
        const bool more = end + 1 != ends.rend() && best[*(end + 1)].id < 0;
        if (more) continue;
        push_unknown(piece.substr(unknown_from, *end - unknown_from), ids);
        unknown_from = piece.size();
      } else {
        ids.push_back(step.id);
      }
    }
  }

 private:
  struct Step {
    double score = -std::numeric_limits<double>::infinity();
    size_t from = 0;
    int64_t id = -1;  // unknown
  };

  // The best last token of each start of the piece.
  std::vector<Step> best_steps(std::u32string_view piece) const {
    std::vector<Step> best(piece.size() + 1);
    best[0].score = 0;
    std::string part;
    for (size_t from = 0; from < piece.size(); ++from) {
      part.clear();
      bool single = false;
      const auto offer = [&](size_t to, double score, int64_t id) {
        if (best[from].score + score > best[to].score) {
          best[to] = {best[from].score + score, from, id};
        }
      };
      for (size_t to = from + 1; to <= piece.size(); ++to) {
        append_utf8(part, piece[to - 1]);
        if (part.size() > longest_) break;
        const std::optional<int64_t> id = vocabulary_->id(part);
        if (!id) continue;
        offer(to, scores_[static_cast<size_t>(*id)], *id);
        single |= to == from + 1;
      }
      if (!single) offer(from + 1, unknown_score_, -1);
    }
    return best;
  }

  void push_unknown(std::u32string_view text, std::vector<int64_t>& ids) const {
    if (byte_fallback_) {
      if (const auto bytes = vocabulary_->bytes(to_utf8(text))) {
        ids.insert(ids.end(), bytes->begin(), bytes->end());
        return;
      }
    }
    if (!unknown_) {
      throw ValueError("Tokenizer", "text of known characters, since there is no unknown token",
                       "'" + to_utf8(text) + "'");
    }
    ids.push_back(*unknown_);
  }

  std::shared_ptr<const Vocabulary> vocabulary_;
  std::vector<double> scores_;
  std::optional<int64_t> unknown_;
  bool byte_fallback_;
  double unknown_score_ = 0;
  size_t longest_ = 0;  // bytes of a token
};

}  // namespace

std::unique_ptr<TokenModel> unigram(std::shared_ptr<const Vocabulary> vocabulary,
                                    std::vector<double> scores, std::optional<int64_t> unknown,
                                    bool byte_fallback) {
  return std::make_unique<Unigram>(std::move(vocabulary), std::move(scores), unknown,
                                   byte_fallback);
}

}  // namespace sash::text
