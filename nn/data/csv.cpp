#include "csv.h"

#include <algorithm>
#include <charconv>
#include <locale>
#include <sstream>

#include "../../core/quote.h"
#include "../../tensor/factories.h"
#include "../../tensor/io/file_reader.h"
#include "number_field.h"

namespace sash::nn::data {
namespace {

constexpr const char* kReadCsv = "read_csv";

bool is_blank(char c) { return c == ' ' || c == '\t'; }

std::string_view trim(std::string_view text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

/// Takes the next record, a row, off `text`; without fields if its line is empty. As in RFC 4180, a
/// field between quotes may hold delimiters, line ends, and quotes, each doubled. Returns what is
/// wrong, or null. `lines` counts the lines.
const char* next_record(std::string_view& text, char delimiter, std::vector<std::string>& fields,
                        int64_t& lines) {
  fields.clear();
  const char ends[] = {delimiter, '\r', '\n'};
  const char* const blanks = delimiter == ' ' ? "\t" : delimiter == '\t' ? " " : " \t";
  for (bool more = true; more;) {
    std::string& field = fields.emplace_back();
    const size_t open = text.find_first_not_of(blanks);
    const bool quoted = open != text.npos && text[open] == '"';
    if (quoted) {
      text.remove_prefix(open + 1);
      for (;;) {
        const size_t quote = text.find('"');
        if (quote == text.npos) return "an end of the quotes";
        const std::string_view part = text.substr(0, quote);
        lines += std::count(part.begin(), part.end(), '\n');
        field += part;
        text.remove_prefix(quote + 1);
        if (!text.starts_with('"')) break;
        field += '"';
        text.remove_prefix(1);
      }
    }
    const size_t end = std::min(text.find_first_of({ends, sizeof ends}), text.size());
    const std::string_view rest = trim(text.substr(0, end));
    if (quoted && !rest.empty()) return "a delimiter after the closing quotes";
    if (!quoted) field = rest;
    text.remove_prefix(end);
    more = text.starts_with(delimiter);
    if (more) text.remove_prefix(1);
    if (!more && !quoted && field.empty() && fields.size() == 1) fields.clear();
  }
  text.remove_prefix(text.starts_with("\r\n") ? 2 : std::min<size_t>(1, text.size()));
  ++lines;
  return nullptr;
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

/// Where the text of each column goes; null for columns of numbers. Leaves the names of these in
/// `table.columns`.
std::vector<std::vector<std::string>*> text_columns(CsvTable& table,
                                                    const std::vector<std::string>& names,
                                                    const CsvOptions& options) {
  std::vector<std::vector<std::string>*> columns;
  std::string known;
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string name = options.header ? names[i] : std::to_string(i);
    known += (i > 0 ? ", " : "") + in_quotes(name);
    const bool text = std::count(options.text.begin(), options.text.end(), name) > 0;
    if (text && table.text.count(name) > 0) {
      throw ValueError(kReadCsv, "one column named " + in_quotes(name), "two");
    }
    columns.push_back(text ? &table.text[name] : nullptr);
    if (!text && options.header) table.columns.push_back(name);
  }
  for (const std::string& name : options.text) {
    if (table.text.count(name) == 0) {
      throw ValueError(kReadCsv, "columns of text among " + known, in_quotes(name));
    }
  }
  return columns;
}

/// Reads numbers as `T`: double for floating dtypes, else int64_t, so that integers are exact.
template <class T>
CsvTable read(const std::string& path, const CsvOptions& options, DType dtype) {
  const FileReader file(kReadCsv, path);
  std::string bytes(file.size(), '\0');
  file.read(bytes.data(), bytes.size(), 0);
  std::string_view text = bytes;
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);  // byte order mark
  CsvTable table;
  std::vector<T> values;
  int64_t line_number = 0, rows = 0;
  std::vector<std::vector<std::string>*> columns;
  const auto fail = [&](const std::string& expected, const std::string& got) {
    throw FormatError(kReadCsv, expected,
                      got + " in line " + std::to_string(line_number) + " of '" + path + "'");
  };
  std::vector<std::string> fields;
  for (int64_t lines = 0; !text.empty();) {
    line_number = lines + 1;
    const char* const wrong = next_record(text, options.delimiter, fields, lines);
    if (wrong) fail(wrong, "none");
    if (fields.empty()) continue;
    if (columns.empty()) {
      columns = text_columns(table, fields, options);
      if (options.header) continue;
    }
    if (fields.size() != columns.size()) {
      fail(std::to_string(columns.size()) + " fields", std::to_string(fields.size()));
    }
    for (size_t i = 0; i < fields.size(); ++i) {
      if (columns[i]) {
        columns[i]->push_back(std::move(fields[i]));
        continue;
      }
      T value = 0;
      bool good = parse(fields[i], value);
      if constexpr (std::is_same_v<T, int64_t>) good = good && fits(dtype, value);
      if (!good) fail(expected_number(dtype), in_quotes(fields[i]));
      values.push_back(value);
    }
    ++rows;
  }
  const auto numbers = std::count(columns.begin(), columns.end(), nullptr);
  const Shape shape{rows, numbers};
  table.values = from_host(values.data(), shape, dtype_of<T>, {.dtype = dtype, .device = kCPU});
  return table;
}

}  // namespace

CsvTable read_csv(const std::string& path, const CsvOptions& options) {
  const DType dtype = options.dtype.value_or(default_dtype());
  return is_floating(dtype) ? read<double>(path, options, dtype)
                            : read<int64_t>(path, options, dtype);
}

}  // namespace sash::nn::data
