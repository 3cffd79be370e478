#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <sash/core/quote.h>
#include <sash/core/readable.h>
#include <sash/tensor/io/gguf.h>
#include <sash/tensor/io/gguf_value.h>
#include <sash/tensor/io/safetensors.h>

#include "commands.h"

namespace {

constexpr size_t kLongestValue = 72;

struct Row {
  std::string name, dtype;
  sash::Shape shape;
  uint64_t bytes;
};

void print_sum(const std::string& what, size_t tensors, int64_t elements, uint64_t bytes) {
  std::printf("%s: %zu tensors, %s elements, %s\n", what.c_str(), tensors,
              sash::grouped(elements).c_str(),
              sash::bytes_text(static_cast<int64_t>(bytes)).c_str());
}

void print_rows(const std::string& kind, const std::vector<Row>& rows) {
  int64_t elements = 0;
  uint64_t bytes = 0;
  int name = 4, dtype = 5, shape = 5;
  for (const Row& row : rows) {
    elements += numel(row.shape);
    bytes += row.bytes;
    name = std::max(name, static_cast<int>(row.name.size()));
    dtype = std::max(dtype, static_cast<int>(row.dtype.size()));
    shape = std::max(shape, static_cast<int>(to_string(row.shape).size()));
  }
  print_sum(kind, rows.size(), elements, bytes);
  std::printf("  %-*s  %-*s  %-*s  %10s\n", name, "name", dtype, "dtype", shape, "shape", "size");
  for (const Row& row : rows) {
    std::printf("  %-*s  %-*s  %-*s  %10s\n", name, row.name.c_str(), dtype, row.dtype.c_str(),
                shape, to_string(row.shape).c_str(),
                sash::bytes_text(static_cast<int64_t>(row.bytes)).c_str());
  }
}

void print_metadata(const std::map<std::string, std::string>& metadata) {
  std::printf("metadata: %zu\n", metadata.size());
  int width = 0;
  for (const auto& [key, value] : metadata) width = std::max(width, static_cast<int>(key.size()));
  for (const auto& [key, value] : metadata) {
    std::printf("  %-*s  %s\n", width, key.c_str(), sash::excerpt(value, kLongestValue).c_str());
  }
}

// Sums by the first part of the name: model, optimizer, scaler.
void print_parts(const std::vector<Row>& rows) {
  struct Part {
    size_t tensors = 0;
    int64_t elements = 0;
    uint64_t bytes = 0;
  };
  std::map<std::string, Part> parts;
  for (const Row& row : rows) {
    Part& part = parts[row.name.substr(0, row.name.find('.'))];
    ++part.tensors;
    part.elements += numel(row.shape);
    part.bytes += row.bytes;
  }
  for (const auto& [name, part] : parts) {
    print_sum("  " + name, part.tensors, part.elements, part.bytes);
  }
}

struct Contents {
  std::string kind;
  std::vector<Row> rows{};
  std::map<std::string, std::string> metadata{};
  bool is_checkpoint = false;
};

Contents safetensors(const std::string& path) {
  const sash::SafetensorsHeader header = sash::load_safetensors_header(path);
  Contents contents{.kind = "safetensors", .metadata = header.metadata};
  std::vector<Row>& rows = contents.rows;
  for (const sash::SafetensorsEntry& entry : header.entries) {
    rows.push_back(
        {sash::excerpt(entry.name, entry.name.size()), entry.dtype, entry.shape, entry.bytes()});
  }
  std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.name < b.name; });
  const auto step = header.metadata.find("step");
  contents.is_checkpoint = step != header.metadata.end() && header.metadata.count("random.seed");
  if (contents.is_checkpoint) {
    contents.kind = "checkpoint of sash at step " + sash::excerpt(step->second);
  }
  return contents;
}

struct ValueText {
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(int64_t value) const { return std::to_string(value); }
  std::string operator()(uint64_t value) const { return std::to_string(value); }
  std::string operator()(double value) const { return sash::to_text(value); }
  std::string operator()(const std::string& value) const { return value; }
  template <class Values>  // a vector of values, or GgufNumbers
  std::string operator()(const Values& values) const {
    constexpr size_t kShown = 4;
    std::string text = "[";
    for (size_t i = 0; i < std::min(values.size(), kShown); ++i) {
      text += (i == 0 ? "" : ", ") + sash::excerpt(std::visit(*this, base(values[i])), 16);
    }
    return text + (values.size() > kShown ? ", ... " + sash::grouped(int64_t(values.size())) : "") +
           "]";
  }

  using Base = sash::GgufValue::variant;
  static const Base& base(const sash::GgufValue& value) { return value; }
};

Contents gguf(const std::string& path) {
  const sash::GgufFile file(path);
  Contents contents{.kind = "GGUF"};
  std::vector<Row>& rows = contents.rows;
  for (const sash::GgufFile::Entry& entry : file.entries()) {
    rows.push_back({sash::excerpt(entry.name, entry.name.size()),
                    sash::gguf_format_name(entry.format), entry.shape, entry.bytes});
  }
  for (const auto& [key, value] : file.metadata()) {
    contents.metadata[sash::excerpt(key)] = std::visit(ValueText(), ValueText::base(value));
  }
  return contents;
}

// A file of one array, whose header is a Python dictionary.
Contents npy(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string start(1024, '\0');
  file.read(start.data(), static_cast<std::streamsize>(start.size()));
  const auto between = [&](const std::string& before, char end) {
    const size_t at = start.find(before);
    const size_t first = at == start.npos ? at : at + before.size();
    const size_t last = first == start.npos ? first : start.find(end, first);
    if (last == start.npos) throw sash::FormatError("inspect", "the header of an npy file", path);
    return start.substr(first, last - first);
  };
  const std::string dtype = between("'descr': '", '\''), extents = between("'shape': (", ')');
  sash::Shape shape;
  const char* at = extents.data();
  const char* const end = at + extents.size();
  for (int64_t extent = 0; at != end; ++at) {
    const auto [after, error] = std::from_chars(at, end, extent);
    if (error != std::errc()) continue;
    shape.push_back(extent);
    at = after - 1;
  }
  const size_t digits = dtype.find_first_of("0123456789");
  uint64_t bytes = 0;
  if (digits != dtype.npos) {
    std::from_chars(dtype.data() + digits, dtype.data() + dtype.size(), bytes);
  }
  return {.kind = "NumPy array",
          .rows = {{"array", dtype, shape, bytes * static_cast<uint64_t>(numel(shape))}}};
}

Contents contents_of(const std::string& path) {
  char magic[6] = {};
  std::ifstream(path, std::ios::binary).read(magic, sizeof magic);
  const std::string start(magic, sizeof magic);
  if (start.starts_with("GGUF")) return gguf(path);
  return start == "\x93NUMPY" ? npy(path) : safetensors(path);
}

void print_folder(const std::string& path) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    const std::string kind = entry.path().extension().string();
    if (kind == ".safetensors" || kind == ".gguf" || kind == ".npy") {
      names.insert(entry.path().filename().string());
    }
  }
  if (names.empty()) {
    throw sash::IoError("inspect", "no file .safetensors, .gguf or .npy in '" + path + "'");
  }
  for (const std::string& name : names) {
    const Contents contents = contents_of((std::filesystem::path(path) / name).string());
    int64_t elements = 0;
    uint64_t bytes = 0;
    for (const Row& row : contents.rows) {
      elements += numel(row.shape);
      bytes += row.bytes;
    }
    print_sum(sash::excerpt(name, name.size()) + ": " + contents.kind, contents.rows.size(),
              elements, bytes);
  }
}

}  // namespace

void print_file(const std::string& path) {
  if (std::filesystem::is_directory(path)) return print_folder(path);
  const Contents contents = contents_of(path);
  print_rows(contents.kind, contents.rows);
  if (contents.is_checkpoint) print_parts(contents.rows);
  print_metadata(contents.metadata);
}
