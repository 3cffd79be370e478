#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <sash/tensor/tensor.h>

/// Text as a sequence of symbols, one per distinct byte, split for training and validation.
class Corpus {
 public:
  /// Reads both texts; the vocabulary is every byte of either. Throws `sash::IoError` for a file
  /// that cannot be read, and `sash::ValueError` for one too short to learn from.
  static Corpus from_files(const std::string& train_path, const std::string& valid_path);
  /// Reads one text, and holds out its last tenth.
  static Corpus from_file(const std::string& path);

  int64_t vocabulary() const { return static_cast<int64_t>(bytes_.size()); }
  const std::vector<int64_t>& train() const { return train_; }
  const std::vector<int64_t>& valid() const { return valid_; }

  /// Symbols of `text`; `sash::ValueError` for a byte outside the vocabulary.
  std::vector<int64_t> encode(const std::string& text) const;
  std::string decode(const std::vector<int64_t>& symbols) const;
  /// The vocabulary as a string, in the order of its symbols: the inverse of `encode`.
  const std::string& bytes() const { return bytes_; }

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
  Corpus(const std::string& train, const std::string& valid);

  std::string bytes_;
  std::vector<int64_t> symbol_of_byte_;
  std::vector<int64_t> train_;
  std::vector<int64_t> valid_;
};

/// Nats per character of an interpolated trigram model (Witten-Bell smoothing), counted on the
/// training text and scored on the validation text: what counting alone can reach.
double trigram_loss(const Corpus& corpus);
