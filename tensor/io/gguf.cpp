#include "gguf.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "../../core/error.h"
#include "../../core/parallel.h"
#include "../../core/quote.h"
#include "../factories.h"
#include "file_kind.h"
#include "file_reader.h"
#include "gguf_value.h"

namespace sash {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::string_view kGgufFile = "GgufFile";
constexpr int kMaxArrayDepth = 4;  // of arrays of arrays
constexpr uint64_t kDefaultAlignment = 32;

[[noreturn]] void fail(const std::string& expected, const std::string& got) {
  throw FormatError(kGgufFile, expected, got);
}

template <class T>
T at_bytes(const char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

template <class T>
GgufValue number_at(const char* bytes) {
  if constexpr (std::is_same_v<T, bool>) return *bytes != 0;
  if constexpr (std::is_same_v<T, uint64_t>) return at_bytes<T>(bytes);
  if constexpr (std::is_floating_point_v<T>) return double{at_bytes<T>(bytes)};
  return static_cast<int64_t>(at_bytes<T>(bytes));
}

// A type of numbers, or bool: the bytes of a value, and the value that stands there.
struct NumberType {
  size_t width = 0;
  GgufValue (*read)(const char* bytes) = nullptr;
};
template <class T>
constexpr NumberType kNumber{sizeof(T), number_at<T>};

// Types by their numbers in the file; {} for strings and arrays.
constexpr uint32_t kBool = 7, kString = 8, kArray = 9;
constexpr NumberType kTypes[] = {kNumber<uint8_t>,
                                 kNumber<int8_t>,
                                 kNumber<uint16_t>,
                                 kNumber<int16_t>,
                                 kNumber<uint32_t>,
                                 kNumber<int32_t>,
                                 kNumber<float>,
                                 kNumber<bool>,
                                 {},
                                 {},
                                 kNumber<uint64_t>,
                                 kNumber<int64_t>,
                                 kNumber<double>};

// Of width 0 unless `type` is a number or bool.
NumberType number_type(uint32_t type) {
  return type < std::size(kTypes) ? kTypes[type] : NumberType();
}

const char* type_name(size_t index) {
  constexpr const char* names[] = {"a bool",   "an integer", "an integer", "a float",
                                   "a string", "an array",   "an array"};
  return names[index];
}

}  // namespace

size_t GgufNumbers::size() const { return bytes_.size() / number_type(type_).width; }

GgufValue GgufNumbers::operator[](size_t i) const {
  const NumberType type = number_type(type_);
  return type.read(bytes_.data() + i * type.width);
}

struct GgufFile::Contents {
  explicit Contents(const std::string& path) : file(kGgufFile, path) {}

  FileReader file;
  std::map<std::string, GgufValue> metadata;
  std::vector<Entry> entries;
  std::map<std::string, size_t> index;  // of `entries`
};

const std::string& GgufFile::path() const { return contents_->file.path(); }
const std::map<std::string, GgufValue>& GgufFile::metadata() const { return contents_->metadata; }
const std::vector<GgufFile::Entry>& GgufFile::entries() const { return contents_->entries; }
bool GgufFile::has(const std::string& key) const { return metadata().count(key) > 0; }

/// Takes values from the front of the file; whatever lies beyond its end is an error.
class GgufFile::Parser {
 public:
  Parser(const GgufFile& file, Contents& contents)
      : file_(file), contents_(contents), reader_(contents.file) {}

  void parse() {
    check_start();
    const auto tensors = take<uint64_t>(), keys = take<uint64_t>();
    // Less than any key or tensor takes.
    if (tensors > left() / 24 || keys > left() / 13) {
      fail("a file that holds " + std::to_string(tensors) + " tensors and " + std::to_string(keys) +
               " keys",
           std::to_string(reader_.size()) + " bytes");
    }
    for (uint64_t i = 0; i < keys; ++i) parse_key(i);
    place_ = "the alignment";
    const auto found = contents_.metadata.find("general.alignment");
    if (found != contents_.metadata.end() && !std::holds_alternative<int64_t>(found->second)) {
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
  uint64_t left() const { return reader_.size() - at_; }

  void check_left(uint64_t count) const {
    if (count <= left()) return;
    fail(std::to_string(count) + " bytes of " + place_,
         "only " + std::to_string(left()) + " before the end of the file");
  }

  void take_bytes(char* to, uint64_t count) {
    check_left(count);
    if (count > window_.size()) {
      reader_.read(to, count, at_);
    } else {
      if (at_ < window_at_ || at_ + count > window_at_ + window_.size()) {
        window_at_ = std::min(at_, reader_.size() - window_.size());
        reader_.read(window_.data(), window_.size(), window_at_);
      }
      std::memcpy(to, window_.data() + (at_ - window_at_), count);
    }
    at_ += count;
  }

  template <class T>
  T take() {
    char bytes[sizeof(T)];
    take_bytes(bytes, sizeof bytes);
    return at_bytes<T>(bytes);
  }

  std::string take_text(uint64_t length) {
    check_left(length);  // before memory is taken
    std::string text(length, '\0');
    take_bytes(text.data(), length);
    return text;
  }
  std::string take_string() { return take_text(take<uint64_t>()); }

  void check_start() {
    place_ = "the file's start";
    std::string start(std::min<uint64_t>(reader_.size(), 512), '\0');
    reader_.read(start.data(), start.size(), 0);
    if (!start.starts_with("GGUF")) {
      const std::string kind = foreign_kind(start);
      fail("a file that begins with 'GGUF'", kind.empty() ? "another" : kind);
    }
    at_ = 4;
    const auto version = take<uint32_t>();
    if (version != 0 && (version & 0xffff) == 0) {
      throw NotImplemented(kGgufFile, "the file is big-endian");
    }
    if (version == 1)
      throw NotImplemented(kGgufFile, "the file is of version 1; sash reads 2 and 3");
    if (version != 2 && version != 3) fail("version 2 or 3", std::to_string(version));
  }

  void parse_key(uint64_t number) {
    place_ = "metadatum " + std::to_string(number);
    const std::string key = take_string();
    place_ = "metadatum " + in_quotes(key);
    const auto type = take<uint32_t>();
    if (!contents_.metadata.emplace(key, take_value(type, 0)).second) {
      fail("distinct keys", in_quotes(key) + " twice");
    }
  }

  GgufValue take_value(uint32_t type, int depth) {
    if (type == kString) return take_string();
    if (type == kArray) return take_array(depth + 1);
    const NumberType number = number_type(type);
    if (number.width == 0) fail("a type from 0 to 12 for " + place_, std::to_string(type));
    char bytes[8];
    take_bytes(bytes, number.width);
    check_bools(type, {bytes, number.width});
    return number.read(bytes);
  }

  void check_bools(uint32_t type, std::string_view bytes) const {
    if (type != kBool) return;
    const auto wrong = std::find_if(bytes.begin(), bytes.end(),
                                    [](char byte) { return static_cast<uint8_t>(byte) > 1; });
    if (wrong == bytes.end()) return;
    fail("a bool of 0 or 1 for " + place_, std::to_string(static_cast<uint8_t>(*wrong)));
  }

  GgufValue take_array(int depth) {
    if (depth > kMaxArrayDepth) {
      fail(place_ + " nested at most " + std::to_string(kMaxArrayDepth) + " deep",
           "a deeper array");
    }
    const auto type = take<uint32_t>();
    const auto count = take<uint64_t>();
    const size_t width = number_type(type).width;
    // A string takes 8 bytes at least, an array more.
    if (count > left() / std::max<size_t>(width, width == 0 ? 8 : 1)) {
      fail(std::to_string(count) + " elements of " + place_,
           "only " + std::to_string(left()) + " bytes before the end of the file");
    }
    if (width > 0) {
      std::string bytes = take_text(count * width);
      check_bools(type, bytes);
      return GgufNumbers(type, std::move(bytes));
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
      throw NotImplemented(kGgufFile,
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
    if (!contents_.index.emplace(entry.name, contents_.entries.size()).second) {
      fail("distinct tensors", name + " twice");
    }
    contents_.entries.push_back(std::move(entry));
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
    for (Entry& entry : contents_.entries) {
      const std::string name = in_quotes(entry.name);
      const bool fits = known ? entry.offset == expected
                              : entry.offset % alignment == 0 && entry.offset >= expected;
      if (!fits) {
        fail("elements of " + name + " at offset " + std::to_string(expected),
             std::to_string(entry.offset));
      }
      known = gguf_format(entry.format) != nullptr;
      const uint64_t room = reader_.size() > start ? reader_.size() - start : 0;
      if (entry.offset > room || entry.bytes > room - entry.offset) {
        fail(std::to_string(entry.bytes) + " bytes of " + name,
             "only " + std::to_string(entry.offset > room ? 0 : room - entry.offset) +
                 " before the end of the file");
      }
      expected = padded(entry.offset + entry.bytes);
      entry.offset += start;
    }
  }

  const GgufFile& file_;
  Contents& contents_;
  const FileReader& reader_;
  uint64_t at_ = 0;
  std::string window_ = std::string(std::min<uint64_t>(reader_.size(), 1 << 16), '\0');
  uint64_t window_at_ = UINT64_MAX;  // of which nothing is read yet
  std::string place_;                // what is read, for errors
};

GgufFile::GgufFile(const std::string& path) try {
  const auto contents = std::make_shared<Contents>(path);
  contents_ = contents;
  Parser(*this, *contents).parse();
} catch (Error& error) {
  name_file(error, path);
  throw;
}

template <class T>
T GgufFile::get(const std::string& key) const {
  const auto fail_here = [&](const std::string& expected, const std::string& got) {
    throw ValueError(kGgufFile, expected, got + "; in '" + path() + "'");
  };
  const auto found = metadata().find(key);
  if (found == metadata().end()) fail_here("a metadatum " + in_quotes(key), "none");
  const GgufValue& value = found->second;
  if (const T* const same = std::get_if<T>(&value)) return *same;
  if constexpr (std::is_same_v<T, std::vector<GgufValue>>) {
    if (const auto* const numbers = std::get_if<GgufNumbers>(&value)) {
      T values;
      for (size_t i = 0; i < numbers->size(); ++i) values.push_back((*numbers)[i]);
      return values;
    }
  }
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
template SASH_API GgufNumbers GgufFile::get<GgufNumbers>(const std::string&) const;

template <class T>
std::vector<T> GgufFile::list(const std::string& key) const {
  std::vector<T> result;
  const auto append = [&](const auto& values) {
    result.reserve(values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      const GgufValue& value = values[i];
      const T* const item = std::get_if<T>(&value);
      if (!item) {
        throw ValueError(
            kGgufFile,
            in_quotes(key) + " to hold " + type_name(GgufValue(T{}).index()) + " in each place",
            std::string(type_name(value.index())) + "; in '" + path() + "'");
      }
      result.push_back(*item);
    }
  };
  const auto found = metadata().find(key);
  const auto* const numbers =
      found == metadata().end() ? nullptr : std::get_if<GgufNumbers>(&found->second);
  if (numbers) {
    append(*numbers);
  } else {
    append(get<std::vector<GgufValue>>(key));
  }
  return result;
}

template SASH_API std::vector<bool> GgufFile::list(const std::string&) const;
template SASH_API std::vector<int64_t> GgufFile::list(const std::string&) const;
template SASH_API std::vector<uint64_t> GgufFile::list(const std::string&) const;
template SASH_API std::vector<double> GgufFile::list(const std::string&) const;
template SASH_API std::vector<std::string> GgufFile::list(const std::string&) const;

Tensor GgufFile::read(const Entry& entry, const TensorOptions& options) const {
  const GgufFormat* const format = gguf_format(entry.format);
  if (!format) {
    throw NotImplemented(kGgufFile, in_quotes(entry.name) + " has format " +
                                        gguf_format_name(entry.format) +
                                        ", which sash does not read; in '" + path() + "'");
  }
  const Tensor values = empty(entry.shape, {.dtype = format->dtype, .device = kCPU});
  void* const elements = values.tensor_view().data;
  if (!format->decode) {
    contents_->file.read(elements, entry.bytes, entry.offset);
  } else {
    constexpr int64_t kBlocks = 1024;  // at a time, which the cache holds
    parallel_for(values.numel() / format->block, kBlocks, [&](int64_t begin, int64_t end) {
      std::vector<uint8_t> blocks(
          static_cast<size_t>(std::min(kBlocks, end - begin) * format->bytes));
      for (int64_t i = begin; i < end; ++i) {
        const int64_t at = (i - begin) % kBlocks;
        if (at == 0) {
          contents_->file.read(blocks.data(),
                               static_cast<uint64_t>(std::min(kBlocks, end - i) * format->bytes),
                               entry.offset + static_cast<uint64_t>(i * format->bytes));
        }
        format->decode(blocks.data() + at * format->bytes,
                       static_cast<float*>(elements) + i * format->block);
      }
    });
  }
  const Device device = options.device ? *options.device : default_device();
  return values.to(options.dtype.value_or(format->dtype))
      .to(device)
      .requires_grad_(options.requires_grad);
}

Tensor GgufFile::tensor(const std::string& name, const TensorOptions& options) const {
  const auto found = contents_->index.find(name);
  if (found == contents_->index.end()) {
    throw ValueError(kGgufFile, "a tensor " + in_quotes(name), "none in '" + path() + "'");
  }
  return read(entries()[found->second], options);
}

StateDict GgufFile::tensors(const TensorOptions& options) const {
  StateDict dict;
  for (const Entry& entry : entries()) dict.emplace_back(entry.name, read(entry, options));
  return dict;
}

}  // namespace sash
