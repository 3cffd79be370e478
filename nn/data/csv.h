#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "../../tensor/tensor.h"

namespace sash::nn::data {

struct CsvOptions {
  char delimiter = ',';
  bool header = true;            ///< whether the first line has names
  std::optional<DType> dtype{};  ///< default: `default_dtype()`
  /// Columns of text, by their names, or without a header by their numbers "0", "1", ...
  std::vector<std::string> text{};
};

struct CsvTable {
  std::vector<std::string> columns{};  ///< names of the columns of numbers; none without a header
  Tensor values{};                     ///< [rows, columns of numbers] on the CPU
  /// The fields of each column of text, by its name or number.
  std::map<std::string, std::vector<std::string>> text{};
};

/// Reads a table of numbers and text as in RFC 4180: each line is a row of fields between
/// delimiters, with or without double quotes. Inside quotes, a name or text may have delimiters,
/// line ends, and doubled quotes. Lines may end as on any system, the file may begin with a
/// byte order mark, spaces may surround a field (they are no part of a text unless it is in
/// quotes), and empty lines are skipped. "nan" and "inf" are numbers of floating dtypes. Integral
/// dtypes take whole numbers in their range, bool 0 and 1. `IoError` if the file cannot be read;
/// `FormatError` that names the line for a field that is not such a number (or is empty), a row
/// with more or fewer fields than the first, or quotes that do not end or end within a field;
/// `ValueError` for a column of text that the file does not have, or has twice.
SASH_API CsvTable read_csv(const std::string& path, const CsvOptions& options = {});

}  // namespace sash::nn::data

namespace sash {
namespace data = nn::data;  // the former name, deprecated
}
