#include "json_lines.h"

#include <nlohmann/json.hpp>

#include "../../core/quote.h"
#include "../../tensor/factories.h"
#include "../../tensor/io/file_reader.h"
#include "number_field.h"

namespace sash::nn::data {
namespace {

using Json = nlohmann::json;

constexpr const char* kReadJsonLines = "read_json_lines";

struct Field {
  std::string name;
  Json::json_pointer place;
};

std::vector<Field> fields_of(const std::vector<std::string>& names) try {
  std::vector<Field> fields;
  for (const std::string& name : names) {
    fields.push_back(
        {name, name.starts_with('/') ? Json::json_pointer(name) : Json::json_pointer() / name});
  }
  return fields;
} catch (const Json::exception& error) {
  throw ValueError(kReadJsonLines, "names of fields or JSON pointers", excerpt(error.what(), 200));
}

bool is_int64(const Json& value) {
  return value.is_number_integer() &&
         !(value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{INT64_MAX});
}

/// One line of the file.
class Line {
 public:
  Line(std::string_view text, int64_t number, const std::string& path)
      : place_(" in line " + std::to_string(number) + " of '" + path + "'") {
    if (text.find('\0') != text.npos) fail("a JSON object", "a byte of 0");  // the parser's end
    json_ = Json::parse(text, nullptr, false);
    if (!json_.is_object()) {
      fail("a JSON object", json_.is_discarded() ? in_quotes(text) : json_.type_name());
    }
  }

  const std::string& text(const Field& field) const {
    const Json& value = at(field, "a string");
    if (!value.is_string()) fail("a string " + in_quotes(field.name), value.type_name());
    return value.get_ref<const std::string&>();
  }
  std::vector<int64_t> list(const Field& field) const {
    const std::string wanted = "a list of integers";
    const Json& value = at(field, wanted);
    if (!value.is_array()) fail(wanted + " " + in_quotes(field.name), value.type_name());
    std::vector<int64_t> list;
    for (const Json& item : value) {
      if (!is_int64(item)) fail(wanted + " " + in_quotes(field.name), shown(item));
      list.push_back(item.get<int64_t>());
    }
    return list;
  }
  /// As `T`: double for floating dtypes, else int64_t, so that integers are exact.
  template <class T>
  T number(const Field& field, DType dtype) const {
    const std::string wanted = expected_number(dtype);
    const Json& value = at(field, wanted);
    if (value.is_boolean()) return static_cast<T>(value.get<bool>());
    const bool floating = is_floating(dtype);
    const bool good = floating ? value.is_number()
                               : is_int64(value) && fits(dtype, value.template get<int64_t>());
    if (!good) fail(wanted + " " + in_quotes(field.name), shown(value));
    return value.get<T>();
  }

 private:
  [[noreturn]] void fail(const std::string& expected, const std::string& got) const {
    throw FormatError(kReadJsonLines, expected, got + place_);
  }
  const Json& at(const Field& field, const std::string& wanted) const {
    if (!json_.contains(field.place)) fail(wanted + " " + in_quotes(field.name), "none");
    return json_.at(field.place);
  }
  // Lists may be nested too deep to be written.
  static std::string shown(const Json& value) {
    return value.is_structured() ? value.type_name() : excerpt(value.dump());
  }

  Json json_;
  std::string place_;
};

template <class T>
JsonLines read_lines(const std::string& path, const JsonLinesOptions& options, DType dtype) {
  const std::vector<Field> numbers = fields_of(options.numbers), texts = fields_of(options.text),
                           lists = fields_of(options.lists);
  const FileReader file(kReadJsonLines, path);
  std::string bytes(file.size(), '\0');
  file.read(bytes.data(), bytes.size(), 0);
  JsonLines table;
  std::vector<T> values;
  int64_t rows = 0, count = 0;
  for (const Field& field : texts) table.text[field.name];
  for (const Field& field : lists) table.lists[field.name];
  for (std::string_view left = bytes; !left.empty();) {
    const size_t end = std::min(left.find('\n'), left.size());
    const std::string_view text = left.substr(0, end);
    left.remove_prefix(std::min(end + 1, left.size()));
    ++count;
    if (text.find_first_not_of(" \t\r") == text.npos) continue;
    const Line line(text, count, path);
    for (const Field& field : numbers) values.push_back(line.number<T>(field, dtype));
    for (const Field& field : texts) table.text[field.name].push_back(line.text(field));
    for (const Field& field : lists) table.lists[field.name].push_back(line.list(field));
    ++rows;
  }
  const Shape shape{rows, static_cast<int64_t>(numbers.size())};
  table.values = from_host(values.data(), shape, dtype_of<T>, {.dtype = dtype, .device = kCPU});
  return table;
}

}  // namespace

JsonLines read_json_lines(const std::string& path, const JsonLinesOptions& options) {
  const DType dtype = options.dtype.value_or(default_dtype());
  return is_floating(dtype) ? read_lines<double>(path, options, dtype)
                            : read_lines<int64_t>(path, options, dtype);
}

}  // namespace sash::nn::data
