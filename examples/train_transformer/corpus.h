#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <sash/nn/data/dataset.h>

#include "vocabulary.h"

/// Text as a sequence of symbols, split for training and validation.
class Corpus {
 public:
  /// The sources of sash, from ../share/sash, seen from the program's folder.
  static Corpus bundled(const std::optional<Vocabulary>& vocabulary);
  /// Reads both texts. The default vocabulary is every byte that occurs in them. Throws
  /// `sash::IoError` if a file cannot be read, `sash::ValueError` if a text is too short or has
  /// bytes outside the vocabulary.
  static Corpus from_files(const std::string& train_path, const std::string& valid_path,
                           const std::optional<Vocabulary>& vocabulary);
  /// Reads one text. Its last tenth is the validation text.
  static Corpus from_file(const std::string& path, const std::optional<Vocabulary>& vocabulary);

  const Vocabulary& vocabulary() const { return vocabulary_; }
  const std::vector<int64_t>& train() const { return train_; }
  const std::vector<int64_t>& valid() const { return valid_; }
  /// A 64-bit hash of both texts.
  const std::string& fingerprint() const { return fingerprint_; }

  /// Throws `sash::ValueError` unless both texts are longer than `length` characters.
  void check_context(int64_t length) const;

  /// Inputs and targets [count, length] on the CPU; targets are the inputs shifted by one. The
  /// `count` random places in the training text depend on `seed` and `step` alone, so that a
  /// resumed run sees the same data as an uninterrupted one.
  sash::nn::data::Batch batch(int64_t count, int64_t length, uint64_t seed, int64_t step) const;

 private:
  Corpus(const std::string& train, const std::string& valid,
         const std::optional<Vocabulary>& vocabulary);

  Vocabulary vocabulary_;
  std::vector<int64_t> train_;
  std::vector<int64_t> valid_;
  std::string fingerprint_;
};

/// Baseline: nats per character on the validation text of an interpolated trigram model
/// (Witten-Bell smoothing) fitted to the training text.
double trigram_loss(const Corpus& corpus);
