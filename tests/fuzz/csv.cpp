// Tables as CSV. The last bytes choose the options.
#include <sash/nn/data/csv.h>

#include "support/fuzz.h"

namespace sash::fuzz {

const std::vector<std::string> words{",",
                                     ";",
                                     "\t",
                                     " ",
                                     "\"",
                                     "\"\"",
                                     "\n",
                                     "\r\n",
                                     "\r",
                                     "\xEF\xBB\xBF",
                                     "nan",
                                     "-inf",
                                     "1e400",
                                     "1e-400",
                                     "+1",
                                     "+-1",
                                     "0x1p3",
                                     "9223372036854775808",
                                     "255",
                                     "256",
                                     "true",
                                     "a",
                                     "\"a,b\"",
                                     "1,2\n",
                                     std::string(1, '\0')};

std::vector<std::string> seeds() {
  return {std::string("a,b\n1,2.5\n3,4\n") + '\0' + '\0',
          std::string("a,b\n\"x, \"\"y\"\"\",2\r\n\"z\n\",4\n") + '\4' + '\0',
          std::string("1;2\n3;4\n") + '\3' + '\1'};
}

void run(Bytes& bytes) {
  memory_factor = 160;  // a field of a byte is a string, in an array that grows
  static constexpr char delimiters[] = {',', ';', '\t', ' ', '"', '\n', 'a'};
  static constexpr DType dtypes[] = {DType::float32, DType::int64, DType::uint8, DType::boolean,
                                     DType::float16};
  const auto choice = bytes.ConsumeIntegral<uint8_t>();
  nn::data::CsvOptions options{.delimiter = delimiters[choice % 7 > 0 ? choice % 7 : 0],
                               .header = choice % 2 == 0,
                               .dtype = bytes.PickValueInArray(dtypes)};
  if (choice & 64) options.text = {options.header ? "a" : "0"};
  const std::string text = bytes.ConsumeRemainingBytesAsString();
  const nn::data::CsvTable table = nn::data::read_csv(path_of(text), options);
  for (const auto& [name, column] : table.text) {
    require(static_cast<int64_t>(column.size()) == table.values.size(0), "a text for each row");
  }
}

}  // namespace sash::fuzz
