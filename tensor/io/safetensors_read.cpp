#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "../../core/backend/backend.h"
#include "../../core/quote.h"
#include "../boolean_bytes.h"
#include "../factories.h"
#include "file_kind.h"
#include "file_reader.h"
#include "safetensors.h"
#include "widen.h"

namespace sash {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kLoad = "load_safetensors";
constexpr uint64_t kPrefixBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr size_t kMaxHeaderDepth = 8;  // a tensor's shape lies at 3
constexpr int kMaxArrayValues = 64;    // a shape has at most 8
constexpr size_t kMaxComplaint = 200;

[[noreturn]] void refuse(std::string_view expected, const std::string& got) {
  throw FormatError(kLoad, expected, got);
}

using Entry = SafetensorsEntry;
using Header = SafetensorsHeader;

/// Names the kind of a known file that is not safetensors.
void check_kind(const FileReader& file) {
  std::string start(std::min<uint64_t>(file.size(), 512), '\0');
  file.read(start.data(), start.size(), 0);
  if (start.size() > kPrefixBytes && start[kPrefixBytes] == '{') {
    uint64_t length = 0;
    std::memcpy(&length, start.data(), sizeof length);
    if (length <= file.size() - kPrefixBytes) return;
  }
  const std::string kind = foreign_kind(start);
  if (!kind.empty()) throw FormatError(kLoad, "'" + file.path() + "' is " + kind);
}

/// The JSON without its length; everything is checked before it is allocated.
std::string read_header(const FileReader& file) {
  check_kind(file);
  if (file.size() < kPrefixBytes) {
    refuse("a file of at least 8 bytes", std::to_string(file.size()));
  }
  uint64_t length = 0;
  file.read(&length, sizeof length, 0);
  if (length > kMaxHeaderBytes) {
    refuse("a header of at most 100000000 bytes", std::to_string(length));
  }
  if (length > file.size() - kPrefixBytes) {
    refuse("a header of " + std::to_string(length) + " bytes",
           "only " + std::to_string(file.size() - kPrefixBytes) + " bytes after its length");
  }
  std::string text(length, '\0');
  file.read(text.data(), length, kPrefixBytes);
  return text;
}

// Builds the header's JSON. Refuses deep nesting, keys that occur twice, and long arrays, whose
// values would take 35 times the memory of their text.
struct HeaderParser : nlohmann::json_sax<Json> {
  Json root{};
  std::vector<Json*> open{};  // each is the last value of the one before
  Json* member = &root;       // of the innermost object: the value of its last key
  int arrays = 0;             // that are open
  int values = 0;             // in the outermost array

  HeaderParser() = default;
  HeaderParser(const HeaderParser&) = delete;
  HeaderParser& operator=(const HeaderParser&) = delete;
  ~HeaderParser() override { clear(root); }

  // The destructor of a value that has others allocates, and may run because memory has ended.
  static void clear(Json& value) noexcept {
    if (!value.is_structured()) return;
    for (Json& part : value) clear(part);
    value.clear();
  }

  bool add(Json value) {
    if (arrays > 0 && ++values > kMaxArrayValues) {
      refuse("at most " + std::to_string(kMaxArrayValues) + " values in an array", "more");
    }
    if (!open.empty() && open.back()->is_array()) {
      open.back()->push_back(std::move(value));
      member = &open.back()->back();
    } else {
      *member = std::move(value);
    }
    return true;
  }
  bool begin(Json value) {
    add(std::move(value));
    if (open.size() == kMaxHeaderDepth) {
      refuse("a header nested at most " + std::to_string(kMaxHeaderDepth) + " deep",
             "a deeper one");
    }
    open.push_back(member);
    return true;
  }
  bool start_object(size_t) override { return begin(Json::object()); }
  bool start_array(size_t) override {
    begin(Json::array());
    if (++arrays == 1) values = 0;
    return true;
  }
  bool end_object() override { return open.pop_back(), true; }
  bool end_array() override { return --arrays, open.pop_back(), true; }
  bool key(std::string& key) override {
    const auto [place, is_new] = open.back()->emplace(key, nullptr);
    if (!is_new) refuse("distinct keys", in_quotes(key) + " twice");
    member = &*place;
    return true;
  }
  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(int64_t value) override { return add(value); }
  bool number_unsigned(uint64_t value) override { return add(value); }
  bool number_float(double value, const std::string&) override { return add(value); }
  bool string(std::string& value) override { return add(std::move(value)); }
  bool binary(Json::binary_t&) override { return true; }
  bool parse_error(size_t, const std::string&, const Json::exception& error) override {
    refuse("a header of UTF-8 JSON", excerpt(error.what(), kMaxComplaint));
  }
};

void parse_header(const std::string& text, HeaderParser& parser) {
  if (text.empty() || text.front() != '{')
    refuse("a header that begins with '{'", "something else");
  // To Json it is the end.
  if (text.find('\0') != text.npos) refuse("a header of UTF-8 JSON", "a byte of 0");
  Json::sax_parse(text, &parser);
}

// A dtype of the format; those without one of sash cannot be read, or only as a wider one.
struct FileDType {
  std::string_view name;
  int64_t bytes;  // of an element
  std::optional<DType> dtype{}, wider{};
};

constexpr FileDType kDTypes[] = {{"F32", 4, DType::float32},
                                 {"F64", 8, DType::float64},
                                 {"F16", 2, DType::float16},
                                 {"BF16", 2, DType::bfloat16},
                                 {"I32", 4, DType::int32},
                                 {"I64", 8, DType::int64},
                                 {"U8", 1, DType::uint8},
                                 {"BOOL", 1, DType::boolean},
                                 {"I8", 1, {}, DType::int32},
                                 {"I16", 2, {}, DType::int32},
                                 {"U16", 2, {}, DType::int32},
                                 {"U32", 4, {}, DType::int64},
                                 {"U64", 8},
                                 {"C64", 8},
                                 {"F8_E4M3", 1},
                                 {"F8_E5M2", 1},
                                 {"F8_E8M0", 1}};

const FileDType* find_dtype(std::string_view name) {
  for (const FileDType& dtype : kDTypes) {
    if (dtype.name == name) return &dtype;
  }
  return nullptr;
}

const FileDType& parse_dtype_of(const std::string& name, const Json& value) {
  if (!value.is_string()) refuse("a dtype name for " + in_quotes(name), excerpt(value.dump()));
  const auto& text = value.get_ref<const std::string&>();
  if (const FileDType* const dtype = find_dtype(text)) return *dtype;
  refuse("a known dtype for " + in_quotes(name), in_quotes(text));
}

/// Sets `bytes` to the size of the elements.
Shape parse_shape(const std::string& name, const Json& value, int64_t element, uint64_t& bytes) {
  const bool is_list = value.is_array() &&
                       std::all_of(value.begin(), value.end(),
                                   [](const Json& extent) { return extent.is_number_unsigned(); });
  if (!is_list)
    refuse("a shape of non-negative integers for " + in_quotes(name), excerpt(value.dump()));
  if (value.size() > static_cast<size_t>(kMaxRank)) {
    throw NotImplemented(kLoad, in_quotes(name) + " has " + std::to_string(value.size()) +
                                    " axes, and sash has at most 8");
  }
  Shape shape;
  bool overflow = false;
  int64_t product = element;  // extents of 0 count as 1, so that strides cannot overflow
  for (const Json& extent : value) {
    const auto wide = extent.get<uint64_t>();
    overflow |= wide > static_cast<uint64_t>(INT64_MAX);
    shape.push_back(static_cast<int64_t>(wide));
    overflow |= __builtin_mul_overflow(product, std::max<int64_t>(shape.back(), 1), &product);
  }
  if (overflow) refuse("a shape below 2^63 bytes for " + in_quotes(name), excerpt(value.dump()));
  bytes = static_cast<uint64_t>(numel(shape) * element);
  return shape;
}

Entry parse_entry(const std::string& name, const Json& value) {
  for (const char* key : {"dtype", "shape", "data_offsets"}) {
    if (!value.is_object() || !value.contains(key)) {
      refuse("dtype, shape and data_offsets for " + in_quotes(name), excerpt(value.dump()));
    }
  }
  const FileDType& dtype = parse_dtype_of(name, value["dtype"]);
  uint64_t bytes = 0;
  const Shape shape = parse_shape(name, value["shape"], dtype.bytes, bytes);
  const Json& offsets = value["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned()) {
    refuse("two non-negative data_offsets for " + in_quotes(name), excerpt(offsets.dump()));
  }
  const auto begin = offsets[0].get<uint64_t>();
  const auto end = offsets[1].get<uint64_t>();
  if (end < begin)
    refuse("data_offsets that do not decrease for " + in_quotes(name), excerpt(offsets.dump()));
  if (end - begin != bytes) {
    refuse(std::to_string(bytes) + " bytes for " + in_quotes(name),
           "data_offsets " + excerpt(offsets.dump()) + " of " + std::to_string(end - begin) +
               " bytes");
  }
  return {name, std::string(dtype.name), shape, begin, end};
}

std::map<std::string, std::string> parse_metadata(const Json& value) {
  const bool is_text =
      value.is_object() &&
      std::all_of(value.begin(), value.end(), [](const Json& v) { return v.is_string(); });
  if (!is_text) refuse("strings in __metadata__", excerpt(value.dump()));
  return value.get<std::map<std::string, std::string>>();
}

/// Sorts `entries` by position; they must fill `data_bytes` exactly.
void check_layout(std::vector<Entry>& entries, uint64_t data_bytes) {
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  uint64_t position = 0;
  for (const Entry& entry : entries) {
    if (entry.begin != position) {
      refuse("data of " + in_quotes(entry.name) + " to begin at " + std::to_string(position),
             std::to_string(entry.begin) + (entry.begin > position ? ": a hole" : ": an overlap"));
    }
    position = entry.end;
  }
  if (position != data_bytes) {
    refuse("tensors that end with the data at " + std::to_string(data_bytes),
           std::to_string(position));
  }
}

Tensor read_tensor(const FileReader& file, const Entry& entry, uint64_t data_start, Device device,
                   IntegerCast integers) {
  const DType dtype = sash_dtype(entry, integers);
  Tensor host = empty(entry.shape, {.dtype = dtype, .device = kCPU});
  const FileDType& own = *find_dtype(entry.dtype);
  if (!own.dtype) {
    std::vector<uint8_t> narrow(static_cast<size_t>(host.numel() * own.bytes));
    file.read(narrow.data(), narrow.size(), data_start + entry.begin);
    widen(narrow.data(), static_cast<int>(own.bytes), own.name[0] == 'I', host);
    return host.to(device);
  }
  const auto bytes = static_cast<uint64_t>(host.numel() * size_of(dtype));
  void* elements = host.tensor_view().data;
  file.read(elements, bytes, data_start + entry.begin);
  if (dtype == DType::boolean) {
    const auto bad = first_not_boolean(host.tensor_view());
    if (bad) refuse("bytes of 0 and 1 in " + in_quotes(entry.name), std::to_string(*bad));
  }
  if (device.is_cpu()) return host;
  return from_host(elements, entry.shape, dtype, {.dtype = dtype, .device = device});
}

Header checked_header(const FileReader& file) {
  const std::string text = read_header(file);
  Header header{.metadata = {}, .entries = {}, .data_start = kPrefixBytes + text.size()};
  HeaderParser parser;
  parse_header(text, parser);
  for (const auto& item : std::as_const(parser.root).items()) {
    if (item.key() == "__metadata__") {
      header.metadata = parse_metadata(item.value());
    } else {
      header.entries.push_back(parse_entry(item.key(), item.value()));
    }
  }
  check_layout(header.entries, file.size() - header.data_start);
  return header;
}

}  // namespace

DType sash_dtype(const Entry& entry, IntegerCast integers) {
  const FileDType* const known = find_dtype(entry.dtype);
  if (known && known->dtype) return *known->dtype;
  const bool integral = known && known->wider;
  if (integral && integers == IntegerCast::widen) return *known->wider;
  const std::string cast =
      integral ? "as " + std::string(name(*known->wider)) + " with IntegerCast::widen; " : "";
  throw NotImplemented(kLoad, "sash cannot read " + in_quotes(entry.name) + " of dtype " +
                                  entry.dtype +
                                  ", only F32, F64, F16, BF16, I32, I64, U8 and BOOL (" + cast +
                                  "other tensors of the file by load_safetensors_tensor)");
}

SafetensorsFile load_safetensors(const std::string& path, std::optional<Device> to,
                                 IntegerCast integers) try {
  const Device device = to ? *to : default_device();
  const FileReader file(kLoad, path);
  Header header = checked_header(file);
  for (const Entry& entry : header.entries)
    sash_dtype(entry, integers);  // throws before anything is read
  SafetensorsFile result;
  result.metadata = std::move(header.metadata);
  for (const Entry& entry : header.entries) {
    result.tensors.emplace_back(entry.name,
                                read_tensor(file, entry, header.data_start, device, integers));
  }
  return result;
} catch (Error& error) {
  name_file(error, path);
  throw;
}

Tensor load_safetensors_tensor(const std::string& path, const SafetensorsHeader& header,
                               const SafetensorsEntry& entry, std::optional<Device> device,
                               IntegerCast integers) try {
  return read_tensor(FileReader(kLoad, path), entry, header.data_start,
                     device ? *device : default_device(), integers);
} catch (Error& error) {
  name_file(error, path);
  throw;
}

SafetensorsHeader load_safetensors_header(const std::string& path) try {
  return checked_header(FileReader(kLoad, path));
} catch (Error& error) {
  name_file(error, path);
  throw;
}

}  // namespace sash
