#pragma once

#include <optional>
#include <string>
#include <vector>

#include "../../tensor/tensor.h"

namespace sash::data {

struct CsvOptions {
  char delimiter = ',';
  bool header = true;            ///< whether the first line has names
  std::optional<DType> dtype{};  ///< default: `default_dtype()`
};

struct CsvTable {
  std::vector<std::string> columns{};  ///< names; empty without a header
  Tensor values{};                     ///< [rows, columns] on the CPU
};

/// Reads a table of numbers as in RFC 4180: a line a row, fields between delimiters, with or
/// without double quotes around them; between quotes, a name may hold delimiters, line ends, and
/// quotes, each doubled. Line ends may be any system's, a byte order mark may come first, spaces
/// may surround a field, and empty lines are skipped. "nan" and "inf" are numbers of floating
/// dtypes. Integral dtypes take whole numbers in their range, bool 0 and 1. `IoError` if the file
/// cannot be read; `FormatError` that names the line for a field that is no such number (an empty
/// one, too), a row with more or fewer fields than the first, or quotes that do not end or end
/// within a field.
SASH_API CsvTable read_csv(const std::string& path, const CsvOptions& options = {});

}  // namespace sash::data
