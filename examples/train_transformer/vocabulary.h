#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

/// The bytes that a model knows, each a symbol.
class Vocabulary {
 public:
  /// Every byte that occurs in `texts`, in ascending order.
  static Vocabulary of(const std::vector<const std::string*>& texts);
  /// From what `hex` gave; `sash::FormatError` for anything else.
  static Vocabulary from_hex(const std::string& text);
  /// As file metadata, which is UTF-8: any byte may be part of a vocabulary.
  std::string hex() const;

  int64_t size() const { return static_cast<int64_t>(bytes_.size()); }
  /// The bytes in the order of their symbols.
  const std::string& bytes() const { return bytes_; }
  /// The first byte of `text` that has no symbol, or -1.
  int unknown_in(const std::string& text) const;
  /// Symbols of `text`; `sash::ValueError` that names `what` for a byte without one.
  std::vector<int64_t> encode(const std::string& what, const std::string& text) const;
  std::string decode(const std::vector<int64_t>& symbols) const;

 private:
  explicit Vocabulary(std::string bytes);

  std::string bytes_;
  std::array<int64_t, 256> symbol_of_byte_;
};
