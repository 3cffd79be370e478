#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "../../core/export.h"

namespace sash {

struct GgufValue;

/// An array of numbers or bools of a GGUF file's metadata. It keeps the bytes of the file.
class SASH_API GgufNumbers {
 public:
  GgufNumbers() = default;
  GgufNumbers(uint32_t type, std::string bytes) : type_(type), bytes_(std::move(bytes)) {}

  size_t size() const;
  /// An element, as a single value of its type would be: a bool, int64_t, uint64_t or double.
  GgufValue operator[](size_t i) const;

 private:
  uint32_t type_ = 0;  // the file's number
  std::string bytes_;
};

/// A value of a GGUF file's metadata. Integers of any width but uint64 are an int64_t, floats a
/// double. Arrays of strings and of arrays are a vector, other arrays `GgufNumbers`.
struct GgufValue : std::variant<bool, int64_t, uint64_t, double, std::string,
                                std::vector<GgufValue>, GgufNumbers> {
  using variant::variant;
};

}  // namespace sash
