#include "gguf.h"

#include <bit>
#include <cstring>

#include "../../core/error.h"
#include "../../core/parallel.h"
#include "../../core/quote.h"
#include "../factories.h"
#include "file_kind.h"

namespace sash {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::string_view kOp = "GgufFile";
constexpr int kMaxDepth = 4;  // of arrays of arrays
constexpr uint64_t kDefaultAlignment = 32;

[[noreturn]] void fail(const std::string& expected, const std::string& got) {
  throw FormatError(kOp, expected, got);
}

enum class Type : uint32_t {
  uint8,
  int8,
  uint16,
  int16,
  uint32,
  int32,
  float32,
  boolean,
  string,
  array,
  uint64,
  int64,
  float64
};

const char* type_name(size_t index) {
  constexpr const char* names[] = {"a bool",  "an integer", "an integer",
                                   "a float", "a string",   "an array"};
  return names[index];
}

}  // namespace

/// Takes values from the front of the file; whatever lies beyond its end is an error.
class GgufFile::Parser {
 public:
  Parser(GgufFile& file, std::span<const uint8_t> bytes) : file_(file), bytes_(bytes) {}

  void parse() {
    check_start();
    const auto tensors = take<uint64_t>(), keys = take<uint64_t>();
    // Less than any key or tensor takes.
    if (tensors > left() / 24 || keys > left() / 13) {
      fail("a file that holds " + std::to_string(tensors) + " tensors and " + std::to_string(keys) +
               " keys",
           std::to_string(bytes_.size()) + " bytes");
    }
    for (uint64_t i = 0; i < keys; ++i) parse_key(i);
    place_ = "the alignment";
    const auto found = file_.metadata_.find("general.alignment");
    if (found != file_.metadata_.end() && !std::holds_alternative<int64_t>(found->second)) {
      fail("a uint32 for 'general.alignment'", type_name(found->second.index()));
    }
    const auto alignment = file_.get<int64_t>("general.alignment", kDefaultAlignment);
    if (alignment < 1 || !std::has_single_bit(static_cast<uint64_t>(alignment)) ||
        alignment > (1 << 20)) {
      fail("general.alignment of a power of 2 up to 2^20", std::to_string(alignment));
    }
    for (uint64_t i = 0; i < tensors; ++i) parse_entry(i);
    place_elements(static_cast<uint64_t>(alignment));
  }

 private:
  uint64_t left() const { return bytes_.size() - at_; }

  const uint8_t* take_bytes(uint64_t count) {
    if (count > left()) {
      fail(std::to_string(count) + " bytes of " + place_,
           "only " + std::to_string(left()) + " before the end of the file");
    }
    const uint8_t* const bytes = bytes_.data() + at_;
    at_ += count;
    return bytes;
  }

  template <class T>
  T take() {
    T value;
    std::memcpy(&value, take_bytes(sizeof value), sizeof value);
    return value;
  }

  std::string take_string() {
    const auto length = take<uint64_t>();
    return {reinterpret_cast<const char*>(take_bytes(length)), length};
  }

  void check_start() {
    place_ = "the file's start";
    const std::string_view start(reinterpret_cast<const char*>(bytes_.data()),
                                 std::min<size_t>(bytes_.size(), 512));
    if (!start.starts_with("GGUF")) {
      const std::string kind = foreign_kind(start);
      fail("a file that begins with 'GGUF'", kind.empty() ? "another" : kind);
    }
    at_ = 4;
    const auto version = take<uint32_t>();
    if (version != 0 && (version & 0xffff) == 0) {
      throw NotImplemented(kOp, "the file is big-endian");
    }
    if (version == 1) throw NotImplemented(kOp, "the file is of version 1; sash reads 2 and 3");
    if (version != 2 && version != 3) fail("version 2 or 3", std::to_string(version));
  }

  void parse_key(uint64_t number) {
    place_ = "metadatum " + std::to_string(number);
    const std::string key = take_string();
    place_ = "metadatum " + in_quotes(key);
    const auto type = take<uint32_t>();
    if (!file_.metadata_.emplace(key, take_value(type, 0)).second) {
      fail("distinct keys", in_quotes(key) + " twice");
    }
  }

  GgufValue take_value(uint32_t type, int depth) {
    switch (static_cast<Type>(type)) {
      case Type::uint8:
        return int64_t{take<uint8_t>()};
      case Type::int8:
        return int64_t{take<int8_t>()};
      case Type::uint16:
        return int64_t{take<uint16_t>()};
      case Type::int16:
        return int64_t{take<int16_t>()};
      case Type::uint32:
        return int64_t{take<uint32_t>()};
      case Type::int32:
        return int64_t{take<int32_t>()};
      case Type::float32:
        return double{take<float>()};
      case Type::boolean:
        return take_bool();
      case Type::string:
        return take_string();
      case Type::array:
        return take_array(depth + 1);
      case Type::uint64:
        return take<uint64_t>();
      case Type::int64:
        return take<int64_t>();
      case Type::float64:
        return take<double>();
    }
    fail("a type from 0 to 12 for " + place_, std::to_string(type));
  }

  bool take_bool() {
    const auto value = take<uint8_t>();
    if (value > 1) fail("a bool of 0 or 1 for " + place_, std::to_string(value));
    return value == 1;
  }

  GgufValue take_array(int depth) {
    if (depth > kMaxDepth) {
      fail(place_ + " nested at most " + std::to_string(kMaxDepth) + " deep", "a deeper array");
    }
    const auto type = take<uint32_t>();
    const auto count = take<uint64_t>();
    if (count > left()) {  // every element takes a byte at least
      fail(std::to_string(count) + " elements of " + place_,
           "only " + std::to_string(left()) + " bytes before the end of the file");
    }
    std::vector<GgufValue> values;
    for (uint64_t i = 0; i < count; ++i) values.push_back(take_value(type, depth));
    return values;
  }

  void parse_entry(uint64_t number) {
    place_ = "tensor " + std::to_string(number);
    Entry entry{take_string(), {}, 0, 0, 0};
    const std::string name = in_quotes(entry.name);
    place_ = "tensor " + name;
    const auto rank = take<uint32_t>();
    if (rank > static_cast<uint32_t>(kMaxRank)) {
      throw NotImplemented(kOp,
                           name + " has " + std::to_string(rank) + " axes, and sash has at most 8");
    }
    int64_t product = 1;  // extents of 0 count as 1
    bool overflow = false;
    for (uint32_t axis = 0; axis < rank; ++axis) {
      const auto extent = take<uint64_t>();
      overflow |= extent > static_cast<uint64_t>(INT64_MAX) / 8;
      entry.shape.insert(0, static_cast<int64_t>(extent));
      overflow |= __builtin_mul_overflow(product, std::max<int64_t>(entry.shape[0], 1), &product);
    }
    if (overflow || product > INT64_MAX / 8) fail("fewer than 2^60 elements of " + name, "more");
    entry.format = take<uint32_t>();
    entry.offset = take<uint64_t>();
    set_bytes(entry, name);
    if (!file_.index_.emplace(entry.name, file_.entries_.size()).second) {
      fail("distinct tensors", name + " twice");
    }
    file_.entries_.push_back(std::move(entry));
  }

  static void set_bytes(Entry& entry, const std::string& name) {
    const GgufFormat* const format = gguf_format(entry.format);
    if (!format) return;  // reading it is refused; its extent is unknown
    const int64_t row = entry.shape.empty() ? 1 : entry.shape.back();
    if (row % format->block != 0) {
      fail("rows of whole blocks of " + std::to_string(format->block) + " for " + name,
           "shape " + to_string(entry.shape));
    }
    entry.bytes = static_cast<uint64_t>(numel(entry.shape) / format->block * format->bytes);
  }

  // Offsets count from the end of the header, padded; tensors follow each other, padded.
  void place_elements(uint64_t alignment) {
    const auto padded = [alignment](uint64_t x) {
      return (x + alignment - 1) / alignment * alignment;
    };
    const uint64_t start = padded(at_);
    uint64_t expected = 0;
    bool known = true;
    for (Entry& entry : file_.entries_) {
      const std::string name = in_quotes(entry.name);
      const bool fits = known ? entry.offset == expected
                              : entry.offset % alignment == 0 && entry.offset >= expected;
      if (!fits) {
        fail("elements of " + name + " at offset " + std::to_string(expected),
             std::to_string(entry.offset));
      }
      known = gguf_format(entry.format) != nullptr;
      const uint64_t room = bytes_.size() > start ? bytes_.size() - start : 0;
      if (entry.offset > room || entry.bytes > room - entry.offset) {
        fail(std::to_string(entry.bytes) + " bytes of " + name,
             "only " + std::to_string(entry.offset > room ? 0 : room - entry.offset) +
                 " before the end of the file");
      }
      expected = padded(entry.offset + entry.bytes);
      entry.offset += start;
    }
  }

  GgufFile& file_;
  std::span<const uint8_t> bytes_;
  uint64_t at_ = 0;
  std::string place_;  // what is read, for errors
};

GgufFile::GgufFile(const std::string& path) try
    : path_(path), file_(std::make_shared<MappedFile>(kOp, path)) {
  Parser(*this, file_->bytes()).parse();
} catch (Error& error) {
  name_file(error, path);
  throw;
}

template <class T>
T GgufFile::get(const std::string& key) const {
  const auto fail_here = [&](const std::string& expected, const std::string& got) {
    throw ValueError(kOp, expected, got + "; in '" + path_ + "'");
  };
  const auto found = metadata_.find(key);
  if (found == metadata_.end()) fail_here("a metadatum " + in_quotes(key), "none");
  const GgufValue& value = found->second;
  if (const T* const same = std::get_if<T>(&value)) return *same;
  const auto* const integer = std::get_if<int64_t>(&value);
  const auto* const wide = std::get_if<uint64_t>(&value);
  if constexpr (std::is_same_v<T, double>) {
    if (integer) return static_cast<double>(*integer);
    if (wide) return static_cast<double>(*wide);
  }
  if constexpr (std::is_same_v<T, int64_t>) {
    if (wide && std::in_range<int64_t>(*wide)) return static_cast<int64_t>(*wide);
  }
  if constexpr (std::is_same_v<T, uint64_t>) {
    if (integer && *integer >= 0) return static_cast<uint64_t>(*integer);
  }
  fail_here(std::string(type_name(GgufValue(T{}).index())) + " for " + in_quotes(key),
            type_name(value.index()));
  return {};
}

template SASH_API bool GgufFile::get<bool>(const std::string&) const;
template SASH_API int64_t GgufFile::get<int64_t>(const std::string&) const;
template SASH_API uint64_t GgufFile::get<uint64_t>(const std::string&) const;
template SASH_API double GgufFile::get<double>(const std::string&) const;
template SASH_API std::string GgufFile::get<std::string>(const std::string&) const;
template SASH_API std::vector<GgufValue> GgufFile::get<std::vector<GgufValue>>(
    const std::string&) const;

Tensor GgufFile::read(const Entry& entry, const TensorOptions& options) const {
  const GgufFormat* const format = gguf_format(entry.format);
  if (!format) {
    throw NotImplemented(kOp, in_quotes(entry.name) + " has format " +
                                  gguf_format_name(entry.format) +
                                  ", which sash does not read; in '" + path_ + "'");
  }
  const uint8_t* const bytes = file_->bytes().data() + entry.offset;
  TensorOptions wanted = options;
  if (!wanted.dtype) wanted.dtype = format->dtype;
  if (!format->decode) return from_host(bytes, entry.shape, format->dtype, wanted);
  const Tensor decoded = empty(entry.shape, {.dtype = DType::float32, .device = kCPU});
  float* const values = static_cast<float*>(decoded.tensor_view().data);
  parallel_for(decoded.numel() / format->block, 1024, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      format->decode(bytes + i * format->bytes, values + i * format->block);
    }
  });
  const Device device = options.device ? *options.device : default_device();
  return decoded.to(*wanted.dtype).to(device).requires_grad_(options.requires_grad);
}

Tensor GgufFile::tensor(const std::string& name, const TensorOptions& options) const {
  const auto found = index_.find(name);
  if (found == index_.end()) {
    throw ValueError(kOp, "a tensor " + in_quotes(name), "none in '" + path_ + "'");
  }
  return read(entries_[found->second], options);
}

StateDict GgufFile::tensors(const TensorOptions& options) const {
  StateDict dict;
  for (const Entry& entry : entries_) dict.emplace_back(entry.name, read(entry, options));
  return dict;
}

}  // namespace sash
