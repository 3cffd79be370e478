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

/// Reads a table of numbers: a line a row, with any system's line ends, fields between delimiters,
/// with or without spaces or double quotes around them; empty lines are skipped. "nan" and "inf"
/// are numbers of floating dtypes. Integral dtypes take whole numbers in their range, bool 0 and 1.
/// `IoError` if the file cannot be read; `FormatError` that names the line for a field that is no
/// such number (an empty one, too), or a row with more or fewer fields than the first.
SASH_API CsvTable read_csv(const std::string& path, const CsvOptions& options = {});

}  // namespace sash::data
