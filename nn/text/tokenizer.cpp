#include "tokenizer.h"

#include <algorithm>

#include "../../core/error.h"
#include "unicode.h"

namespace sash::text {
namespace {

constexpr const char* kTokenizer = "Tokenizer";

void append(std::vector<int64_t>& to, const std::vector<int64_t>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

}  // namespace

struct Tokenizer::State : TokenizerParts {
  AddedTokens raw, normalized;
  std::unordered_map<int64_t, AddedToken> added_by_id;
  int64_t size = 0;

  explicit State(TokenizerParts&& parts)
      : TokenizerParts(std::move(parts)),
        raw(added, false, normalizer),
        normalized(added, true, normalizer),
        size(vocabulary->size()) {
    for (AddedToken token : added) {
      if (token.id < 0 || token.id >= kMostTokens) {
        throw FormatError(kTokenizer, "numbers of added tokens from 0 to 2^24",
                          std::to_string(token.id));
      }
      // The text that it was found as.
      if (token.normalized && normalizer) {
        token.content = to_utf8(normalizer(from_utf8(kTokenizer, token.content)));
      }
      size = std::max(size, token.id + 1);
      added_by_id.emplace(token.id, std::move(token));
    }
    check_template(single);
    check_template(pair);
  }

  void check_template(const std::vector<TemplateItem>& items) const {
    for (const TemplateItem& item : items) {
      for (const int64_t id : item.ids) {
        if (id >= 0 && id < size) continue;
        throw FormatError(kTokenizer, "tokens of the post-processor below " + std::to_string(size),
                          std::to_string(id));
      }
    }
  }

  // Text without added tokens that are found before it is normalised.
  void encode_raw(std::u32string text, bool first, std::vector<int64_t>& ids) const {
    if (normalizer) text = normalizer(std::move(text));
    for (const auto& [begin, end, id] : normalized.split(text)) {
      if (id >= 0) {
        ids.push_back(id);
        continue;
      }
      std::vector<Piece> pieces{{text.substr(begin, end - begin), first && begin == 0}};
      if (pre_tokenizer) pieces = pre_tokenizer(std::move(pieces));
      for (const Piece& piece : pieces) model->encode(piece.text, ids);
    }
  }
};

Tokenizer::Tokenizer(TokenizerParts parts)
    : state_(std::make_shared<const State>(std::move(parts))) {}

std::vector<int64_t> Tokenizer::encode_text(std::string_view text) const {
  const std::u32string codes = from_utf8(kTokenizer, text);
  std::vector<int64_t> ids;
  for (const auto& [begin, end, id] : state_->raw.split(codes)) {
    if (id >= 0) {
      ids.push_back(id);
    } else {
      state_->encode_raw(codes.substr(begin, end - begin), begin == 0, ids);
    }
    check_growth(codes.size(), ids.size());
  }
  return ids;
}

std::vector<int64_t> Tokenizer::encode(std::string_view text, bool special_tokens) const {
  const std::vector<int64_t> own = encode_text(text);
  if (!special_tokens) return own;
  std::vector<int64_t> ids;
  for (const TemplateItem& item : state_->single) {
    append(ids, item.kind == TemplateItem::special ? item.ids : own);
  }
  return ids;
}

Encoding Tokenizer::encode_pair(std::string_view a, std::string_view b, bool special_tokens) const {
  const std::vector<int64_t> texts[] = {encode_text(a), encode_text(b)};
  Encoding result;
  for (const TemplateItem& item : state_->pair) {
    const bool special = item.kind == TemplateItem::special;
    if (special && !special_tokens) continue;
    append(result.ids, special ? item.ids : texts[item.kind == TemplateItem::second_text]);
    result.type_ids.resize(result.ids.size(), item.type_id);
  }
  return result;
}

std::string Tokenizer::decode(const std::vector<int64_t>& ids, bool keep_special) const {
  std::vector<std::string> tokens;
  for (const int64_t id : ids) {
    if (id < 0 || id >= size()) {
      throw IndexError(kTokenizer, "tokens below " + std::to_string(size()), std::to_string(id));
    }
    if (keep_special || !is_special(id)) tokens.push_back(token(id));
  }
  const bool decoded = static_cast<bool>(state_->decoder);
  if (decoded) tokens = state_->decoder(std::move(tokens));
  std::string text;
  for (size_t i = 0; i < tokens.size(); ++i) text += (i > 0 && !decoded ? " " : "") + tokens[i];
  return text;
}

int64_t Tokenizer::size() const { return state_->size; }

const std::string& Tokenizer::token(int64_t id) const {
  static const std::string none;
  const auto added = state_->added_by_id.find(id);
  if (added != state_->added_by_id.end()) return added->second.content;
  return id >= 0 && id < state_->vocabulary->size() ? state_->vocabulary->token(id) : none;
}

std::optional<int64_t> Tokenizer::id(std::string_view token) const {
  for (const AddedToken& added : state_->added) {
    if (added.content == token) return added.id;
  }
  return state_->vocabulary->id(token);
}

bool Tokenizer::is_special(int64_t id) const {
  const auto added = state_->added_by_id.find(id);
  return added != state_->added_by_id.end() && added->second.special;
}

}  // namespace sash::text
