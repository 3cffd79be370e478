// Arrays of NumPy. The last byte says whether the others are a file, or a header of which one is
// made.
#include <sash/nn/data/npy.h>

#include "support/fuzz.h"

namespace sash::fuzz {

const std::vector<std::string> words{"'descr':",
                                     "'fortran_order':",
                                     "'shape':",
                                     "True",
                                     "False",
                                     "(",
                                     ")",
                                     ",",
                                     "{",
                                     "}",
                                     "<f4",
                                     ">f8",
                                     "<i8",
                                     "|b1",
                                     "|u1",
                                     ">i2",
                                     "<u4",
                                     "=f2",
                                     "<c8",
                                     "[('a',",
                                     "18446744073709551615",
                                     "9223372036854775807",
                                     "-1",
                                     "0",
                                     "1,",
                                     "(1,1,1,1,1,1,1,1,1)",
                                     " ",
                                     "\n"};

namespace {

std::string with_header(const std::string& header, size_t data) {
  return std::string("\x93NUMPY\2\0", 8) + raw(static_cast<uint32_t>(header.size())) + header +
         std::string(data, '\1');
}

}  // namespace

std::vector<std::string> seeds() {
  const std::string small = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n";
  const std::string swapped = "{'descr': '>i2', 'fortran_order': True, 'shape': (3,2,), }\n";
  return {small + "\x18\1", swapped + "\x0c\1", with_header(small, 24) + '\0',
          "{'descr': '|b1', 'fortran_order': False, 'shape': (), }\n\1\1"};
}

void run(Bytes& bytes) {
  const bool header = bytes.ConsumeBool();
  const size_t data = header ? bytes.ConsumeIntegral<uint8_t>() : 0;
  std::string text = bytes.ConsumeRemainingBytesAsString();
  if (header) text = with_header(text, data);
  const Tensor array = nn::data::load_npy(path_of(text), kCPU);
  require(array.rank() <= 8, "at most 8 axes");
  require(static_cast<size_t>(array.numel()) <= text.size(), "no more elements than bytes");
}

}  // namespace sash::fuzz
