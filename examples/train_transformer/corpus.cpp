#include "corpus.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <unordered_map>

#include <sash/core/error.h>
#include <sash/core/philox.h>
#include <sash/tensor/factories.h>

#include "options.h"

namespace {

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file || file.bad()) throw sash::IoError(kOp, "cannot read the text " + path);
  return text;
}

// FNV-1a, 64 bits.
std::string fingerprint_of(const std::string& text, const std::string& before) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const std::string* part : {&before, &text}) {
    for (const char c : *part) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }
  return std::to_string(hash);
}

sash::nn::data::Batch windows(const std::vector<int64_t>& text, const std::vector<int64_t>& starts,
                              int64_t length) {
  std::vector<int64_t> inputs, targets;
  for (const int64_t start : starts) {
    const auto from = text.begin() + start;
    inputs.insert(inputs.end(), from, from + length);
    targets.insert(targets.end(), from + 1, from + length + 1);
  }
  const sash::Shape shape{static_cast<int64_t>(starts.size()), length};
  const sash::TensorOptions on_host{.device = sash::kCPU};
  return {sash::tensor(inputs, shape, on_host), sash::tensor(targets, shape, on_host)};
}

}  // namespace

Corpus::Corpus(const std::string& train, const std::string& valid,
               const std::optional<Vocabulary>& vocabulary)
    : vocabulary_(vocabulary ? *vocabulary : Vocabulary::of({&train, &valid})),
      fingerprint_(fingerprint_of(train, fingerprint_of(valid, ""))) {
  constexpr size_t kShortest = 1000;
  if (train.size() < kShortest || valid.size() < 100) {
    throw sash::ValueError(
        kOp,
        "at least " + std::to_string(kShortest) + " characters to train on and 100 to validate",
        std::to_string(train.size()) + " and " + std::to_string(valid.size()));
  }
  train_ = vocabulary_.encode("a text", train);
  valid_ = vocabulary_.encode("a text", valid);
}

Corpus Corpus::bundled(const std::optional<Vocabulary>& vocabulary) {
  namespace fs = std::filesystem;
  const fs::path folder =
      fs::read_symlink("/proc/self/exe").parent_path().parent_path() / "share/sash";
  const std::string train = folder / "corpus_train.txt";
  if (!fs::exists(train)) {
    throw sash::IoError(kOp, "no " + train + ", the text that sash comes with: give one by --text");
  }
  return from_files(train, folder / "corpus_valid.txt", vocabulary);
}

Corpus Corpus::from_files(const std::string& train_path, const std::string& valid_path,
                          const std::optional<Vocabulary>& vocabulary) {
  return {read(train_path), read(valid_path), vocabulary};
}

Corpus Corpus::from_file(const std::string& path, const std::optional<Vocabulary>& vocabulary) {
  const std::string text = read(path);
  const size_t cut = text.size() - text.size() / 10;
  return {text.substr(0, cut), text.substr(cut), vocabulary};
}

void Corpus::check_context(int64_t length) const {
  const std::pair<const char*, size_t> texts[] = {{"training", train_.size()},
                                                  {"held-out", valid_.size()}};
  for (const auto& [name, size] : texts) {
    if (length < static_cast<int64_t>(size)) continue;
    throw sash::ValueError(kOp,
                           std::string("--context shorter than the ") + name + " text of " +
                               std::to_string(size) + " characters",
                           std::to_string(length));
  }
}

sash::nn::data::Batch Corpus::batch(int64_t count, int64_t length, uint64_t seed,
                                    int64_t step) const {
  const auto places = static_cast<int64_t>(train_.size()) - length;
  std::vector<int64_t> starts;
  for (int64_t i = 0; i < count; ++i) {
    const auto counter = static_cast<uint64_t>(step * count + i);
    const sash::PhiloxBlock bits = sash::philox(seed ^ 0x5A5A5A5A5A5A5A5Au, counter);
    const uint64_t wide = uint64_t{bits.lane[0]} << 32 | bits.lane[1];
    starts.push_back(static_cast<int64_t>(wide % static_cast<uint64_t>(places)));
  }
  return windows(train_, starts, length);
}

double trigram_loss(const Corpus& corpus) {
  // Counts of the symbols that follow a context of up to two symbols.
  struct Followers {
    std::unordered_map<int64_t, int64_t> counts;
    int64_t total = 0;
  };
  std::array<std::unordered_map<int64_t, Followers>, 3> contexts;
  const int64_t base = corpus.vocabulary().size();
  const auto key = [base](const std::vector<int64_t>& text, size_t at, size_t order) {
    int64_t packed = 0;
    for (size_t i = at - order; i < at; ++i) packed = packed * base + text[i];
    return packed;
  };
  for (size_t at = 2; at < corpus.train().size(); ++at) {
    for (size_t order = 0; order < contexts.size(); ++order) {
      Followers& followers = contexts[order][key(corpus.train(), at, order)];
      ++followers.counts[corpus.train()[at]];
      ++followers.total;
    }
  }
  double nats = 0;
  for (size_t at = 2; at < corpus.valid().size(); ++at) {
    double p = 1.0 / static_cast<double>(base);
    for (size_t order = 0; order < contexts.size(); ++order) {
      const auto found = contexts[order].find(key(corpus.valid(), at, order));
      if (found == contexts[order].end()) break;
      const Followers& followers = found->second;
      const auto hit = followers.counts.find(corpus.valid()[at]);
      const double count = hit == followers.counts.end() ? 0 : static_cast<double>(hit->second);
      const auto kinds = static_cast<double>(followers.counts.size());
      p = (count + kinds * p) / (static_cast<double>(followers.total) + kinds);
    }
    nats -= std::log(p);
  }
  return nats / static_cast<double>(corpus.valid().size() - 2);
}
