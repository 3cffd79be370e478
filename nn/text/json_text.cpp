#include "json_text.h"

#include <charconv>

#include "../../core/error.h"
#include "../../core/quote.h"
#include "../../tensor/io/file_reader.h"

namespace sash::text {
namespace {

constexpr int kMaxDepth = 64;

}  // namespace

std::string read_text(std::string_view op, const std::string& path) {
  const FileReader file(op, path);
  std::string text(file.size(), '\0');
  file.read(text.data(), text.size(), 0);
  return text;
}

std::string_view checked_depth(std::string_view op, std::string_view json) {
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (c == '\0') throw FormatError(op, "JSON", "a byte of 0");  // to the parser it is the end
    if (c == '"') quoted = !quoted;
    if (quoted) {
      i += c == '\\';
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxDepth) {
        throw FormatError(op, "JSON nested at most " + std::to_string(kMaxDepth) + " deep",
                          "a deeper one");
      }
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return json;
}

int64_t integer_of(std::string_view op, const std::string& name, const std::string& value,
                   int64_t least, int64_t most) {
  int64_t number = 0;
  const char* const end = value.data() + value.size();
  const auto read = std::from_chars(value.data(), end, number);
  if (read.ec != std::errc() || read.ptr != end || number < least || number > most) {
    throw FormatError(
        op, "an integer " + name + " from " + std::to_string(least) + " to " + std::to_string(most),
        excerpt(value));
  }
  return number;
}

}  // namespace sash::text
