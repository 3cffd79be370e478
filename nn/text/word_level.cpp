#include "token_model.h"
#include "unicode.h"

namespace sash::text {
namespace {

class WordLevel : public TokenModel {
 public:
  WordLevel(std::shared_ptr<const Vocabulary> vocabulary, int64_t unknown)
      : vocabulary_(std::move(vocabulary)), unknown_(unknown) {}

  void encode(std::u32string_view piece, std::vector<int64_t>& ids) const override {
    ids.push_back(vocabulary_->id(to_utf8(piece)).value_or(unknown_));
  }

 private:
  std::shared_ptr<const Vocabulary> vocabulary_;
  int64_t unknown_;
};

}  // namespace

std::unique_ptr<TokenModel> word_level(std::shared_ptr<const Vocabulary> vocabulary,
                                       int64_t unknown) {
  return std::make_unique<WordLevel>(std::move(vocabulary), unknown);
}

}  // namespace sash::text
