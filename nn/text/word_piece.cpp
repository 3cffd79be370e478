#include <algorithm>

#include "token_model.h"
#include "unicode.h"

namespace sash::text {
namespace {

class WordPiece : public TokenModel {
 public:
  WordPiece(std::shared_ptr<const Vocabulary> vocabulary, int64_t unknown,
            const std::string& prefix, int64_t max_characters)
      : vocabulary_(std::move(vocabulary)),
        unknown_(unknown),
        prefix_(prefix),
        max_characters_(static_cast<size_t>(max_characters)) {
    for (int64_t id = 0; id < vocabulary_->size(); ++id) {
      longest_ = std::max(longest_, vocabulary_->token(id).size());
    }
  }

  void encode(std::u32string_view piece, std::vector<int64_t>& ids) const override {
    const size_t before = ids.size();
    size_t done = 0;
    while (piece.size() <= max_characters_ && done < piece.size()) {
      size_t length = std::min(piece.size() - done, longest_);
      std::optional<int64_t> id;
      for (; length > 0 && !id; length -= id ? 0 : 1) {
        id = vocabulary_->id((done > 0 ? prefix_ : "") + to_utf8(piece.substr(done, length)));
      }
      if (!id) break;
      ids.push_back(*id);
      done += length;
    }
    if (done == piece.size()) return;
    ids.resize(before);
    ids.push_back(unknown_);
  }

 private:
  std::shared_ptr<const Vocabulary> vocabulary_;
  int64_t unknown_;
  std::string prefix_;
  size_t max_characters_;
  size_t longest_ = 0;  // bytes of a token, which has no more characters
};

}  // namespace

std::unique_ptr<TokenModel> word_piece(std::shared_ptr<const Vocabulary> vocabulary,
                                       int64_t unknown, const std::string& prefix,
                                       int64_t max_characters) {
  return std::make_unique<WordPiece>(std::move(vocabulary), unknown, prefix, max_characters);
}

}  // namespace sash::text
