#include "npy.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <set>

#include "../../core/quote.h"
#include "../../tensor/factories.h"
#include "../../tensor/io/file_kind.h"
#include "../../tensor/io/file_reader.h"
#include "../../tensor/io/replacement_file.h"
#include "../../tensor/io/widen.h"

namespace sash::nn::data {
namespace {

constexpr const char* kLoad = "load_npy";
constexpr std::string_view kMagic("\x93NUMPY", 6);
constexpr size_t kAlignment = 64;  // of the elements in the file

/// An element type of NumPy, and what it becomes here.
struct ElementType {
  std::string_view code;
  DType dtype;
  int bytes;
};
constexpr ElementType kTypes[] = {
    {"b1", DType::boolean, 1}, {"i1", DType::int32, 1},   {"i2", DType::int32, 2},
    {"i4", DType::int32, 4},   {"i8", DType::int64, 8},   {"u1", DType::uint8, 1},
    {"u2", DType::int32, 2},   {"u4", DType::int64, 4},   {"f2", DType::float16, 2},
    {"f4", DType::float32, 4}, {"f8", DType::float64, 8},
};

constexpr const char* kElements = "elements of type b1, i1 to i8, u1 to u4 or f2 to f8";

[[noreturn]] void fail(std::string_view expected, std::string_view got) {
  throw FormatError(kLoad, expected, in_quotes(got));
}

/// Reads the header, a Python dictionary, from left to right.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text), left_(text) {}

  void skip_spaces() {
    left_.remove_prefix(std::min(left_.find_first_not_of(" \n"), left_.size()));
  }
  bool take(char c) {
    skip_spaces();
    if (!left_.starts_with(c)) return false;
    left_.remove_prefix(1);
    return true;
  }
  void need(char c) {
    if (!take(c)) fail(std::string("'") + c + "' in the header of an npy file", text_);
  }
  std::string_view string() {
    need('\'');
    const size_t end = left_.find('\'');
    if (end == std::string_view::npos) fail("closed quotes in the header of an npy file", text_);
    const std::string_view value = left_.substr(0, end);
    left_.remove_prefix(end + 1);
    return value;
  }
  bool boolean() {
    skip_spaces();
    for (const std::string_view word : {"True", "False"}) {
      if (!left_.starts_with(word)) continue;
      left_.remove_prefix(word.size());
      return word == "True";
    }
    fail("True or False in the header of an npy file", text_);
  }
  int64_t number() {
    skip_spaces();
    int64_t value = -1;
    const auto [end, error] = std::from_chars(left_.data(), left_.data() + left_.size(), value);
    if (error != std::errc() || value < 0) fail("extents in the header of an npy file", text_);
    left_.remove_prefix(static_cast<size_t>(end - left_.data()));
    return value;
  }
  bool done() {
    skip_spaces();
    return left_.empty();
  }

 private:
  std::string_view text_, left_;
};

struct Header {
  std::string type{};
  bool columns_first = false;
  std::vector<int64_t> extents{};
};

Header parse(std::string_view text) {
  Header header;
  Reader reader(text);
  std::set<std::string_view> keys;
  reader.need('{');
  while (!reader.take('}')) {
    const std::string_view key = reader.string();
    reader.need(':');
    if (!keys.insert(key).second) fail("each key once in an npy file", text);
    if (key == "descr") {
      if (reader.take('[')) throw NotImplemented(kLoad, kElements, "a structure");
      header.type = reader.string();
    } else if (key == "fortran_order") {
      header.columns_first = reader.boolean();
    } else if (key == "shape") {
      reader.need('(');
      while (!reader.take(')')) {
        header.extents.push_back(reader.number());
        if (!reader.take(',')) {
          reader.need(')');
          break;
        }
      }
    } else {
      fail("the keys descr, fortran_order and shape in an npy file", key);
    }
    reader.take(',');
  }
  if (keys.size() != 3 || !reader.done()) {
    fail("the keys descr, fortran_order and shape in an npy file", text);
  }
  return header;
}

const ElementType& type_of(std::string_view text) {
  if (text.size() == 3 && std::string_view("<>|=").find(text[0]) != std::string_view::npos) {
    for (const ElementType& type : kTypes) {
      if (type.code == text.substr(1)) return type;
    }
  }
  throw NotImplemented(kLoad, kElements, in_quotes(text));
}

Tensor read_elements(const FileReader& file, uint64_t at, const ElementType& type, bool swapped,
                     const Shape& shape) {
  const TensorOptions on_host{.dtype = type.dtype, .device = kCPU};
  Tensor y = empty(shape, on_host);
  const bool as_is = type.bytes == size_of(type.dtype);
  if (as_is && !swapped && type.dtype != DType::boolean) {
    file.read(y.tensor_view().data, file.size() - at, at);
    return y;
  }
  std::vector<uint8_t> bytes(file.size() - at);
  file.read(bytes.data(), bytes.size(), at);
  if (swapped) {
    for (size_t i = 0; i < bytes.size(); i += static_cast<size_t>(type.bytes)) {
      std::reverse(bytes.data() + i, bytes.data() + i + type.bytes);
    }
  }
  if (as_is) return from_host(bytes.data(), shape, type.dtype, on_host);
  widen(bytes.data(), type.bytes, type.code[0] == 'i', y);
  return y;
}

Tensor load(const std::string& path) {
  const FileReader file(kLoad, path);
  std::string start(std::min<uint64_t>(file.size(), 16), '\0');
  file.read(start.data(), start.size(), 0);
  if (start.size() < 12 || !start.starts_with(kMagic)) fail("an npy file", start);
  const int version = static_cast<uint8_t>(start[6]);
  if (version < 1 || version > 3) fail("version 1, 2 or 3 of npy", std::to_string(version));
  uint32_t length = 0;
  std::memcpy(&length, start.data() + 8, version == 1 ? 2 : 4);
  const size_t first = version == 1 ? 10 : 12;
  if (length > file.size() - first) fail("the whole header of an npy file", start);
  std::string text(length, '\0');
  file.read(text.data(), length, first);
  const Header header = parse(text);
  const ElementType& type = type_of(header.type);
  if (header.extents.size() > kMaxRank) {
    throw NotImplemented(kLoad, "at most 8 axes", std::to_string(header.extents.size()));
  }
  std::vector<int64_t> extents = header.extents;
  if (header.columns_first) std::reverse(extents.begin(), extents.end());
  const uint64_t at = first + length;
  uint64_t expected = static_cast<uint64_t>(type.bytes);
  for (const int64_t extent : extents) {
    if (__builtin_mul_overflow(expected, static_cast<uint64_t>(extent), &expected)) {
      fail("fewer than 2^64 bytes in an npy file", header.type);
    }
  }
  if (expected != file.size() - at) {
    throw FormatError(kLoad, std::to_string(expected) + " bytes of elements, as the header says",
                      std::to_string(file.size() - at));
  }
  const Shape shape{std::span<const int64_t>(extents)};
  const Tensor y = read_elements(file, at, type, header.type[0] == '>', shape);
  if (!header.columns_first || y.rank() < 2) return y;
  Dims axes;
  for (int64_t axis = y.rank() - 1; axis >= 0; --axis) axes.push_back(axis);
  return y.permute(axes).contiguous();
}

std::string_view code_of(DType dtype) {
  switch (dtype) {
    case DType::boolean:
      return "|b1";
    case DType::uint8:
      return "|u1";
    case DType::int32:
      return "<i4";
    case DType::int64:
      return "<i8";
    case DType::float16:
      return "<f2";
    case DType::float32:
      return "<f4";
    case DType::float64:
      return "<f8";
    default:
      break;
  }
  throw DTypeError("save_npy", "a dtype that NumPy has", std::string(name(dtype)));
}

}  // namespace

Tensor load_npy(const std::string& path, std::optional<Device> device) try {
  return load(path).to(device.value_or(default_device()));
} catch (Error& error) {
  name_file(error, path);
  throw;
}

void save_npy(const std::string& path, const Tensor& tensor) {
  const std::string_view code = code_of(tensor.dtype());
  const Tensor host = tensor.detach().to(kCPU).contiguous();
  std::string shape = "(";
  for (const int64_t extent : host.shape()) shape += std::to_string(extent) + ", ";
  std::string header =
      "{'descr': '" + std::string(code) + "', 'fortran_order': False, 'shape': " + shape + "), }";
  constexpr size_t kPrefix = 10;
  header.append(kAlignment - 1 - (kPrefix + header.size()) % kAlignment, ' ');
  header += '\n';
  std::string start(kMagic);
  start += {'\x01', '\x00', static_cast<char>(header.size() & 0xFF),
            static_cast<char>(header.size() >> 8)};
  ReplacementFile file("save_npy", path);
  file.write(start.data(), start.size());
  file.write(header.data(), header.size());
  const TensorView view = host.tensor_view();
  file.write(view.data, static_cast<size_t>(host.numel() * size_of(host.dtype())));
  file.commit();
}

}  // namespace sash::nn::data
