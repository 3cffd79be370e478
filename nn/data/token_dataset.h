#pragma once

#include <memory>
#include <span>
#include <string>

#include "dataset.h"

namespace sash {
class MappedFile;
}

namespace sash::nn::data {

/// A sequence of token ids, in memory or in a mapped file.
class SASH_API Tokens {
 public:
  /// In memory. `ValueError` if an id is negative.
  explicit Tokens(std::vector<int64_t> ids);
  /// A file of little-endian unsigned integers, after `skip` bytes of header: ids of 16 or 32 bits,
  /// as nanoGPT and llm.c prepare them, or of 8 bits, such as the bytes of a text. The file is
  /// mapped: ids are read from disk when they are used, so the file may be larger than memory.
  /// While it is in use, replace it by a rename and never write to it: ids would change, and
  /// reading beyond the end of a file that was made shorter ends the program (SIGBUS). `IoError` if
  /// it cannot be read, `ValueError` for other bits, `FormatError` if its size is not a whole
  /// number of ids.
  static Tokens from_file(const std::string& path, int bits, int64_t skip = 0);
  /// Each byte of a text is an id.
  static Tokens from_bytes(std::string_view text);

  int64_t size() const { return size_; }
  /// Ids [first, first + to.size()).
  void read(int64_t first, std::span<int64_t> to) const;

 private:
  Tokens() = default;

  std::shared_ptr<const void> owner_;  // of the memory
  const void* ids_ = nullptr;
  int bytes_ = 0;  // of an id
  int64_t size_ = 0;
};

/// Writes ids as `Tokens::from_file` reads them. Atomic. `ValueError` for an id beyond `bits`,
/// `IoError` if the file cannot be written.
SASH_API void save_tokens(const std::string& path, std::span<const int64_t> ids, int bits);

struct TokenDatasetOptions {
  int64_t stride = 0;  ///< tokens between the starts of two samples; 0: `context`
};

/// Windows of a sequence, for language models. Sample i is inputs and targets int64 [context]: the
/// tokens from i * stride on, and the tokens from i * stride + 1 on.
class SASH_API TokenDataset : public Dataset {
 public:
  /// `ValueError` for a context below 1, a negative stride, or fewer than context + 1 tokens.
  TokenDataset(Tokens tokens, int64_t context, TokenDatasetOptions options = {});

  int64_t size() const override { return size_; }
  Batch get(int64_t index) const override;
  Batch batch(std::span<const int64_t> indices) const override;

 private:
  Tokens tokens_;
  int64_t context_, stride_, size_;
};

}  // namespace sash::nn::data
