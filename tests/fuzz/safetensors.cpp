// The last byte says what the others are: a file, a header, or choices of which a file is made.
#include <cstring>

#include <sash/tensor/io/safetensors.h>

#include "support/fuzz.h"

namespace sash::fuzz {

const std::vector<std::string> words{"F32",
                                     "F64",
                                     "F16",
                                     "BF16",
                                     "I32",
                                     "I64",
                                     "U8",
                                     "BOOL",
                                     "I8",
                                     "I16",
                                     "U16",
                                     "U32",
                                     "U64",
                                     "C64",
                                     "F8_E4M3",
                                     "\"dtype\":",
                                     "\"shape\":",
                                     "\"data_offsets\":",
                                     "\"__metadata__\":",
                                     "{",
                                     "}",
                                     "[",
                                     "]",
                                     ",",
                                     ":",
                                     "[0,4]",
                                     "[]",
                                     "[1,1,1,1,1,1,1,1,1]",
                                     "{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}",
                                     "18446744073709551615",
                                     "9223372036854775807",
                                     "-1",
                                     "1.0",
                                     "1e400",
                                     "null",
                                     "\\u0000",
                                     "\xc3"};

std::vector<std::string> seeds() {
  const std::string header =
      R"({"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
      R"("b":{"dtype":"BOOL","shape":[2,1],"data_offsets":[8,10]}})";
  return {raw(uint64_t{header.size()}) + header + std::string(10, '\0') + '\0', header + "\x0a\x01",
          parity_file("checkpoints/bert.safetensors") + '\0',
          "abcdefghijklmnopqrstuvwxyz0123456789\x02"};
}

namespace {

std::string with_header(const std::string& header, size_t data) {
  return raw(uint64_t{header.size()}) + header + std::string(data, '\0');
}

// Mostly valid.
std::string made(Bytes& bytes) {
  static const std::pair<const char*, uint64_t> dtypes[] = {
      {"F32", 4}, {"F64", 8}, {"F16", 2}, {"I64", 8}, {"U8", 1}, {"BOOL", 1}, {"U16", 2}};
  std::string header = "{";
  uint64_t at = 0;
  if (rarely(bytes, 4)) header += "\"__metadata__\":{\"" + word(bytes) + "\":\"v\"},";
  const int count = bytes.ConsumeIntegralInRange(0, 6);
  for (int i = 0; i < count; ++i) {
    const auto& [dtype, width] = bytes.PickValueInArray(dtypes);
    uint64_t size = width;
    std::string shape;
    const int rank = bytes.ConsumeIntegralInRange(0, 4);
    for (int axis = 0; axis < rank; ++axis) {
      const auto extent = rarely(bytes, 16) ? bytes.ConsumeIntegral<uint64_t>()
                                            : bytes.ConsumeIntegralInRange<uint64_t>(0, 4);
      shape += (axis > 0 ? "," : "") + std::to_string(extent);
      size *= extent;
    }
    const uint64_t begin = rarely(bytes, 16) ? bytes.ConsumeIntegral<uint64_t>() : at;
    const std::string name = rarely(bytes, 4) ? word(bytes) : "t" + std::to_string(i);
    header += (i > 0 ? ",\"" : "\"") + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":[" +
              shape + "],\"data_offsets\":[" + std::to_string(begin) + "," +
              std::to_string(begin + size) + "]}";
    at = begin + size;
  }
  header += rarely(bytes, 16) ? word(bytes) : "}";
  return with_header(header, std::min<uint64_t>(at, 4096) + rarely(bytes, 16));
}

}  // namespace

void run(Bytes& bytes) {
  const int kind = bytes.ConsumeIntegral<uint8_t>() % 3;
  std::string text;
  if (kind == 1) {
    const size_t data = bytes.ConsumeIntegral<uint8_t>();
    text = with_header(bytes.ConsumeRemainingBytesAsString(), data);
  } else {
    text = kind == 0 ? bytes.ConsumeRemainingBytesAsString() : made(bytes);
  }
  const std::string path = path_of(text);
  const SafetensorsHeader header = load_safetensors_header(path);
  uint64_t at = 0;
  for (const SafetensorsEntry& entry : header.entries) {
    require(entry.begin == at, "tensors follow each other");
    at = entry.end;
  }
  require(header.data_start + at == text.size(), "tensors fill the file");
  const SafetensorsFile file = load_safetensors(path, kCPU, IntegerCast::widen);
  require(file.tensors.size() == header.entries.size(), "each entry is a tensor");
  for (size_t i = 0; i < header.entries.size(); ++i) {
    const Tensor& whole = file.tensors[i].second;
    require(whole.shape() == header.entries[i].shape, "a tensor has the shape of its entry");
    if (i > 3) continue;
    const Tensor alone =
        load_safetensors_tensor(path, header, header.entries[i], kCPU, IntegerCast::widen);
    const auto size = static_cast<size_t>(whole.numel() * size_of(whole.dtype()));
    const bool same =
        size == 0 || std::memcmp(whole.tensor_view().data, alone.tensor_view().data, size) == 0;
    require(same, "a tensor alone has the bits of the whole file's");
  }
}

}  // namespace sash::fuzz
