#include "added_tokens.h"

#include <algorithm>

#include "unicode.h"

namespace sash::text {

AddedTokens::AddedTokens(const std::vector<AddedToken>& tokens, bool normalized,
                         const Normalizer& normalizer) {
  for (const AddedToken& token : tokens) {
    if (token.normalized != normalized) continue;
    std::u32string content = from_utf8("Tokenizer", token.content);
    if (normalized && normalizer) content = normalizer(content);
    if (!content.empty()) by_first_[content[0]].push_back({content, token});
  }
  for (auto& [first, entries] : by_first_) {
    std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
      return a.content.size() > b.content.size();
    });
  }
}

const AddedTokens::Entry* AddedTokens::longest_at(std::u32string_view text, size_t at) const {
  const auto found = by_first_.find(text[at]);
  if (found == by_first_.end()) return nullptr;
  for (const Entry& entry : found->second) {
    if (text.substr(at).starts_with(entry.content)) return &entry;
  }
  return nullptr;
}

std::vector<AddedTokens::Part> AddedTokens::split(std::u32string_view text) const {
  std::vector<Part> parts;
  size_t done = 0;
  for (size_t at = 0; at < text.size() && !by_first_.empty();) {
    const Entry* const entry = longest_at(text, at);
    if (!entry) {
      ++at;
      continue;
    }
    size_t begin = at, end = at + entry->content.size();
    at = end;
    if (begin < done) continue;  // in the white space behind another
    if (entry->token.single_word &&
        ((begin > 0 && is_word(text[begin - 1])) || (end < text.size() && is_word(text[end])))) {
      continue;
    }
    while (entry->token.lstrip && begin > done && is_space(text[begin - 1])) --begin;
    while (entry->token.rstrip && end < text.size() && is_space(text[end])) ++end;
    if (begin > done) parts.push_back({done, begin, -1});
    parts.push_back({begin, end, entry->token.id});
    done = end;
  }
  if (done < text.size()) parts.push_back({done, text.size(), -1});
  return parts;
}

}  // namespace sash::text
