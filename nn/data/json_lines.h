#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "../../tensor/tensor.h"

namespace sash::nn::data {

/// The fields to read: names, or JSON pointers (RFC 6901) such as "/messages/0/content".
struct JsonLinesOptions {
  std::vector<std::string> numbers{};  ///< fields with a number, true or false
  std::vector<std::string> text{};     ///< fields with a string
  std::vector<std::string> lists{};    ///< fields with a list of integers, such as token ids
  std::optional<DType> dtype{};        ///< of `numbers`; default: `default_dtype()`
};

/// Text and lists by the names of their fields, with an element for each row.
struct JsonLines {
  Tensor values{};  ///< [rows, numbers] on the CPU
  std::map<std::string, std::vector<std::string>> text{};
  std::map<std::string, std::vector<std::vector<int64_t>>> lists{};
};

/// Reads a file with a JSON object in each line (JSON Lines). Other fields and empty lines are
/// skipped. Integral dtypes take whole numbers in their range, bool 0, 1, true and false.
/// `ValueError` for an invalid JSON pointer; `IoError` if the file cannot be read; `FormatError`
/// that names the line if it is not a JSON object, or if a field is missing or of another kind.
SASH_API JsonLines read_json_lines(const std::string& path, const JsonLinesOptions& options);

}  // namespace sash::nn::data
