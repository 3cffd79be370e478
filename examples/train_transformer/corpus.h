#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <sash/tensor/tensor.h>

#include "vocabulary.h"

/// Text as a sequence of symbols, split for training and validation.
class Corpus {
 public:
  /// Reads both texts. Without a vocabulary, it is every byte of either. Throws `sash::IoError` for
  /// a file that cannot be read, `sash::ValueError` for a text too short to learn from or with
  /// bytes outside the vocabulary.
  static Corpus from_files(const std::string& train_path, const std::string& valid_path,
                           const std::optional<Vocabulary>& vocabulary);
  /// Reads one text, and holds out its last tenth.
  static Corpus from_file(const std::string& path, const std::optional<Vocabulary>& vocabulary);

  const Vocabulary& vocabulary() const { return vocabulary_; }
  const std::vector<int64_t>& train() const { return train_; }
  const std::vector<int64_t>& valid() const { return valid_; }
  /// The same for equal texts, and hardly ever for others.
  const std::string& fingerprint() const { return fingerprint_; }

  /// `sash::ValueError` unless both texts have a window of `length`, and what follows it.
  void check_context(int64_t length) const;

  /// Inputs and targets [count, length] on the CPU (targets are the inputs moved on by one), from
  /// `count` places of the training text that `seed` and `step` alone determine: a resumed run goes
  /// on with the data it would have seen.
  std::pair<sash::Tensor, sash::Tensor> batch(int64_t count, int64_t length, uint64_t seed,
                                              int64_t step) const;
  /// Windows `first .. first + count` of the validation text, cut into windows of `length`; on the
  /// CPU too.
  std::pair<sash::Tensor, sash::Tensor> valid_windows(int64_t first, int64_t count,
                                                      int64_t length) const;
  int64_t valid_window_count(int64_t length) const {
    return (static_cast<int64_t>(valid_.size()) - 1) / length;
  }

 private:
  Corpus(const std::string& train, const std::string& valid,
         const std::optional<Vocabulary>& vocabulary);

  Vocabulary vocabulary_;
  std::vector<int64_t> train_;
  std::vector<int64_t> valid_;
  std::string fingerprint_;
};

/// Nats per character of an interpolated trigram model (Witten-Bell smoothing), counted on the
/// training text and scored on the validation text: what counting alone can reach.
double trigram_loss(const Corpus& corpus);
