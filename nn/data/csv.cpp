#include "csv.h"

#include <charconv>
#include <locale>
#include <sstream>

#include "../../core/quote.h"
#include "../../core/scalar.h"
#include "../../tensor/factories.h"
#include "../../tensor/io/file_reader.h"

namespace sash::data {
namespace {

constexpr const char* kOp = "read_csv";

std::string_view trim(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  text = text.substr(first, text.find_last_not_of(" \t") - first + 1);
  const bool quoted = text.size() >= 2 && text.front() == '"' && text.back() == '"';
  return quoted ? text.substr(1, text.size() - 2) : text;
}

/// Splits at delimiters that are not between quotes.
std::vector<std::string_view> fields_of(std::string_view line, char delimiter) {
  std::vector<std::string_view> fields;
  bool quoted = false;
  size_t first = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '"') quoted = !quoted;
    if (line[i] != delimiter || quoted) continue;
    fields.push_back(trim(line.substr(first, i - first)));
    first = i + 1;
  }
  fields.push_back(trim(line.substr(first)));
  return fields;
}

/// Whether the whole field is a number.
template <class T>
bool parse(std::string_view field, T& value) {
  if (field.starts_with('+')) {
    field.remove_prefix(1);
    if (field.starts_with('-')) return false;
  }
  const auto [stop, error] = std::from_chars(field.data(), field.data() + field.size(), value);
  if (stop != field.data() + field.size()) return false;
  if (std::is_same_v<T, double> && error == std::errc::result_out_of_range) {
    // Too large or, which is no error, too small: a stream tells.
    std::istringstream stream{std::string(field)};
    stream.imbue(std::locale::classic());
    return static_cast<bool>(stream >> value);
  }
  return error == std::errc();
}

bool fits(DType dtype, int64_t value) {
  return dtype == DType::boolean ? value == 0 || value == 1 : holds(dtype, value);
}

std::string expectation(DType dtype) {
  if (dtype == DType::boolean) return "0 or 1";
  if (is_floating(dtype)) return "a number";
  return "a whole number of " + std::string(name(dtype));
}

/// Reads numbers as `T`: double for floating dtypes, else int64_t, so that integers are exact.
template <class T>
CsvTable read(const std::string& path, const CsvOptions& options, DType dtype) {
  const FileReader file(kOp, path);
  std::string bytes(file.size(), '\0');
  file.read(bytes.data(), bytes.size(), 0);
  std::string_view text = bytes;
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);  // byte order mark
  CsvTable table;
  std::vector<T> values;
  int64_t line_number = 0, rows = 0;
  size_t columns = 0;
  const auto fail = [&](const std::string& expected, const std::string& got) {
    throw FormatError(kOp, expected,
                      got + " in line " + std::to_string(line_number) + " of '" + path + "'");
  };
  while (!text.empty()) {
    const size_t end = std::min(text.find_first_of("\r\n"), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end);
    text.remove_prefix(text.starts_with("\r\n") ? 2 : std::min<size_t>(1, text.size()));
    ++line_number;
    if (trim(line).empty()) continue;
    const std::vector<std::string_view> fields = fields_of(line, options.delimiter);
    if (columns == 0) columns = fields.size();
    if (fields.size() != columns) {
      fail(std::to_string(columns) + " fields", std::to_string(fields.size()));
    }
    if (options.header && table.columns.empty()) {
      for (const std::string_view name : fields) table.columns.emplace_back(name);
      continue;
    }
    for (const std::string_view field : fields) {
      T value = 0;
      bool good = parse(field, value);
      if constexpr (std::is_same_v<T, int64_t>) good = good && fits(dtype, value);
      if (!good) fail(expectation(dtype), in_quotes(field));
      values.push_back(value);
    }
    ++rows;
  }
  const Shape shape{rows, static_cast<int64_t>(columns)};
  table.values = from_host(values.data(), shape, dtype_of<T>, {.dtype = dtype, .device = kCPU});
  return table;
}

}  // namespace

CsvTable read_csv(const std::string& path, const CsvOptions& options) {
  const DType dtype = options.dtype.value_or(default_dtype());
  return is_floating(dtype) ? read<double>(path, options, dtype)
                            : read<int64_t>(path, options, dtype);
}

}  // namespace sash::data
