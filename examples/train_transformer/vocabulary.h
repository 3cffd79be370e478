#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

/// The bytes that a model can represent. Symbol i stands for the i-th of them.
class Vocabulary {
 public:
  /// Every byte that occurs in `texts`, in ascending order.
  static Vocabulary of(const std::vector<const std::string*>& texts);
  /// Parses the result of `hex`. Throws `sash::FormatError` for any other text.
  static Vocabulary from_hex(const std::string& text);
  /// As hexadecimal digits, for file metadata: that is UTF-8, and a vocabulary may have any byte.
  std::string hex() const;

  int64_t size() const { return static_cast<int64_t>(bytes_.size()); }
  /// The bytes in the order of their symbols.
  const std::string& bytes() const { return bytes_; }
  /// The first byte of `text` that has no symbol, or -1.
  int unknown_in(const std::string& text) const;
  /// The symbols of `text`. Throws `sash::ValueError`, naming `what`, for a byte without a symbol.
  std::vector<int64_t> encode(const std::string& what, const std::string& text) const;
  std::string decode(const std::vector<int64_t>& symbols) const;

 private:
  explicit Vocabulary(std::string bytes);

  std::string bytes_;
  std::array<int64_t, 256> symbol_of_byte_;
};
