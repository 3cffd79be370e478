// Tables as JSON Lines. The last bytes choose the fields.
#include <sash/nn/data/json_lines.h>

#include "support/fuzz.h"

namespace sash::fuzz {

const std::vector<std::string> words{"{",
                                     "}",
                                     "[",
                                     "]",
                                     ",",
                                     ":",
                                     "\"x\":",
                                     "\"t\":",
                                     "\"l\":",
                                     "true",
                                     "null",
                                     "\n",
                                     "\\",
                                     "\"",
                                     "\\ud800",
                                     "1.5",
                                     "1e400",
                                     "-0",
                                     "9223372036854775808",
                                     "{\"x\":1,\"t\":\"a\"}\n",
                                     "[[[[[[[[",
                                     "{\"a\":{\"a\":",
                                     "\xc3",
                                     "255",
                                     "256"};

std::vector<std::string> seeds() {
  return {"{\"x\":1.5,\"t\":\"a\",\"l\":[1,2]}\n{\"x\":2,\"t\":\"\",\"l\":[]}\n\x1c",
          "{\"x\":true}\n\n{\"x\":0}\r\n\x03", "{\"l\":[3],\"a\":{\"a\":[1]}}\n\x10"};
}

void run(Bytes& bytes) {
  static constexpr DType dtypes[] = {DType::float32, DType::int64, DType::uint8, DType::boolean};
  const auto choice = bytes.ConsumeIntegral<uint8_t>();
  nn::data::JsonLinesOptions options{.numbers = {"x"}, .dtype = dtypes[choice % 4]};
  if (choice & 4) options.numbers.push_back("/l/0");
  if (choice & 8) options.text = {"t"};
  if (choice & 16) options.lists = {"l", "/a/a"};
  if (choice & 32) options.text.push_back("/" + bytes.ConsumeRandomLengthString(8));
  const std::string text = bytes.ConsumeRemainingBytesAsString();
  const nn::data::JsonLines table = nn::data::read_json_lines(path_of(text), options);
  for (const auto& [name, column] : table.lists) {
    require(static_cast<int64_t>(column.size()) == table.values.size(0), "a list for each row");
  }
}

}  // namespace sash::fuzz
