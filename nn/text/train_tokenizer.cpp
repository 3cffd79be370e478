#include "train_tokenizer.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <unordered_map>

#include "../../core/error.h"
#include "../../core/quote.h"
#include "unicode.h"

namespace sash::text {
namespace {

using Json = nlohmann::json;
using Counts = std::unordered_map<std::string, int64_t>;

constexpr const char* kTrainBpe = "train_bpe";
constexpr const char* kTrainWordLevel = "train_word_level";

void check_special(const char* op, const std::vector<std::string>& tokens, int64_t vocab,
                   int64_t least) {
  const std::set<std::string> distinct(tokens.begin(), tokens.end());
  if (distinct.size() != tokens.size() || distinct.count("") > 0) {
    std::string given;
    for (const std::string& token : tokens) given += (given.empty() ? "" : ", ") + in_quotes(token);
    throw ValueError(op, "distinct special tokens that are not empty", given);
  }
  for (const std::string& token : tokens) from_utf8(op, token);  // checks it
  const int64_t all = static_cast<int64_t>(tokens.size()) + least;
  if (vocab < all) {
    throw ValueError(op, "a vocabulary of at least " + std::to_string(all) + " tokens",
                     std::to_string(vocab));
  }
}

Counts count_pieces(const char* op, std::span<const std::string> texts, const PreTokenizer& split) {
  Counts counts;
  for (const std::string& text : texts) {
    for (const Piece& piece : split({{from_utf8(op, text), true}})) ++counts[to_utf8(piece.text)];
  }
  return counts;
}

Json added_tokens(const std::vector<std::string>& special) {
  Json added = Json::array();
  for (const std::string& token : special) {
    added.push_back({{"id", added.size()},
                     {"content", token},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  return added;
}

std::string tokenizer_json(const std::vector<std::string>& special, const Json& pre_tokenizer,
                           const Json& decoder, const Json& model) {
  const Json json{{"version", "1.0"},
                  {"truncation", nullptr},
                  {"padding", nullptr},
                  {"added_tokens", added_tokens(special)},
                  {"normalizer", nullptr},
                  {"pre_tokenizer", pre_tokenizer},
                  {"post_processor", nullptr},
                  {"decoder", decoder},
                  {"model", model}};
  return json.dump() + "\n";
}

// ---- byte pair encoding -------------------------------------------------------------------------

struct CountedWord {
  std::vector<uint32_t> tokens;
  int64_t count;
};

/// A pair of tokens, and words in which it occurs.
struct CountedPair {
  int64_t count;
  uint32_t left, right;
  std::vector<uint32_t> words;

  // The heap gives the largest first: the most frequent, then the lowest numbers.
  friend bool operator<(const CountedPair& a, const CountedPair& b) {
    return std::tie(a.count, b.left, b.right) < std::tie(b.count, a.left, a.right);
  }
};

class BpeTrainer {
 public:
  BpeTrainer(const Counts& counts, const BpeTrainingOptions& options) : options_(options) {
    for (const std::string& token : options.special_tokens) number_of(token);
    std::array<uint32_t, 256> numbers{};
    for (char32_t c = 0; c < 512; ++c) {  // in the order of the characters
      if (const auto byte = byte_of_character(c)) {
        numbers[*byte] = number_of(to_utf8(std::u32string(1, c)));
      }
    }
    for (const auto& [word, count] : counts) {
      CountedWord& counted = words_.emplace_back(CountedWord{{}, count});
      for (const char c : word) counted.tokens.push_back(numbers[static_cast<uint8_t>(c)]);
    }
  }

  void train() {
    for (uint32_t word = 0; word < words_.size(); ++word) {
      const std::vector<uint32_t>& tokens = words_[word].tokens;
      for (size_t i = 0; i + 1 < tokens.size(); ++i) add(tokens[i], tokens[i + 1], 1, word);
    }
    queue_changed();
    while (static_cast<int64_t>(tokens_.size()) < options_.vocab && !queue_.empty()) {
      std::pop_heap(queue_.begin(), queue_.end());
      CountedPair best = std::move(queue_.back());
      queue_.pop_back();
      const int64_t count = counts_[key_of(best.left, best.right)];
      if (best.count != count) {
        best.count = count;
        push(std::move(best));
        continue;
      }
      if (count < std::max<int64_t>(options_.min_frequency, 1)) break;
      const uint32_t merged = number_of(tokens_[best.left] + tokens_[best.right]);
      merges_.push_back(Json::array({tokens_[best.left], tokens_[best.right]}));
      for (const uint32_t word : best.words) merge(word, best.left, best.right, merged);
      queue_changed();
    }
  }

  Json vocab() const {
    Json vocab = Json::object();
    for (size_t i = 0; i < tokens_.size(); ++i) vocab[tokens_[i]] = i;
    return vocab;
  }
  const Json& merges() const { return merges_; }

 private:
  static uint64_t key_of(uint32_t left, uint32_t right) { return uint64_t{left} << 32 | right; }

  uint32_t number_of(const std::string& token) {
    const auto [place, is_new] = numbers_.emplace(token, static_cast<uint32_t>(tokens_.size()));
    if (is_new) tokens_.push_back(token);
    return place->second;
  }
  void push(CountedPair pair) {
    queue_.push_back(std::move(pair));
    std::push_heap(queue_.begin(), queue_.end());
  }
  /// `change` more of this pair in `word`.
  void add(uint32_t left, uint32_t right, int64_t change, uint32_t word) {
    const uint64_t key = key_of(left, right);
    counts_[key] += change * words_[word].count;
    if (change < 0) return;
    std::vector<uint32_t>& words = changed_[key];
    if (words.empty() || words.back() != word) words.push_back(word);
  }
  void queue_changed() {
    for (auto& [key, words] : changed_) {
      const int64_t count = counts_[key];
      if (count <= 0) continue;
      push({count, static_cast<uint32_t>(key >> 32), static_cast<uint32_t>(key & UINT32_MAX),
            std::move(words)});
    }
    changed_.clear();
  }
  void merge(uint32_t word, uint32_t left, uint32_t right, uint32_t merged) {
    std::vector<uint32_t>& tokens = words_[word].tokens;
    size_t kept = 0;
    for (size_t i = 0; i < tokens.size(); ++i, ++kept) {
      tokens[kept] = tokens[i];
      if (tokens[i] != left || i + 1 == tokens.size() || tokens[i + 1] != right) continue;
      tokens[kept] = merged;
      if (kept > 0) {
        add(tokens[kept - 1], left, -1, word);
        add(tokens[kept - 1], merged, 1, word);
      }
      if (++i + 1 < tokens.size()) {
        add(right, tokens[i + 1], -1, word);
        add(merged, tokens[i + 1], 1, word);
      }
    }
    tokens.resize(kept);
  }

  const BpeTrainingOptions& options_;
  std::vector<std::string> tokens_;  // by number
  std::unordered_map<std::string, uint32_t> numbers_;
  std::vector<CountedWord> words_;
  std::unordered_map<uint64_t, int64_t> counts_;                 // of pairs
  std::unordered_map<uint64_t, std::vector<uint32_t>> changed_;  // new pairs, with their words
  std::vector<CountedPair> queue_;  // a heap; counts may have become smaller
  Json merges_ = Json::array();
};

}  // namespace

std::string train_bpe(std::span<const std::string> texts, const BpeTrainingOptions& options) {
  check_special(kTrainBpe, options.special_tokens, options.vocab, 256);
  const PreTokenizer split =
      pre_tokenizers::split(Pattern(options.pattern), SplitBehavior::isolated);
  BpeTrainer trainer(count_pieces(kTrainBpe, texts, split), options);
  trainer.train();
  const Json bytes{{"type", "ByteLevel"},
                   {"add_prefix_space", false},
                   {"trim_offsets", true},
                   {"use_regex", false}};
  const Json regex{{"type", "Split"},
                   {"pattern", {{"Regex", options.pattern}}},
                   {"behavior", "Isolated"},
                   {"invert", false}};
  return tokenizer_json(options.special_tokens,
                        {{"type", "Sequence"}, {"pretokenizers", Json::array({regex, bytes})}},
                        bytes,
                        {{"type", "BPE"},
                         {"dropout", nullptr},
                         {"unk_token", nullptr},
                         {"continuing_subword_prefix", nullptr},
                         {"end_of_word_suffix", nullptr},
                         {"fuse_unk", false},
                         {"byte_fallback", false},
                         {"ignore_merges", false},
                         {"vocab", trainer.vocab()},
                         {"merges", trainer.merges()}});
}

std::string train_word_level(std::span<const std::string> texts,
                             const WordLevelTrainingOptions& options) {
  const std::vector<std::string>& special = options.special_tokens;
  check_special(kTrainWordLevel, special, options.vocab, 0);
  if (std::count(special.begin(), special.end(), options.unknown) == 0) {
    throw ValueError(kTrainWordLevel, "the unknown token among the special tokens",
                     in_quotes(options.unknown));
  }
  Counts counts = count_pieces(kTrainWordLevel, texts, pre_tokenizers::whitespace());
  for (const std::string& token : special) counts.erase(token);
  std::vector<std::pair<int64_t, std::string>> words;  // the most frequent first
  for (const auto& [word, count] : counts) {
    if (count >= options.min_frequency) words.emplace_back(-count, word);
  }
  std::sort(words.begin(), words.end());
  Json vocab = Json::object();
  for (const std::string& token : special) vocab.emplace(token, vocab.size());
  for (const auto& [count, word] : words) {
    if (static_cast<int64_t>(vocab.size()) == options.vocab) break;
    vocab.emplace(word, vocab.size());
  }
  return tokenizer_json(
      special, {{"type", "Whitespace"}}, nullptr,
      {{"type", "WordLevel"}, {"vocab", std::move(vocab)}, {"unk_token", options.unknown}});
}

}  // namespace sash::text
