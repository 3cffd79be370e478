#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
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

void print_safetensors(const std::string& path) {
  const sash::SafetensorsHeader header = sash::load_safetensors_header(path);
  std::vector<Row> rows;
  for (const sash::SafetensorsEntry& entry : header.entries) {
    rows.push_back(
        {sash::excerpt(entry.name, entry.name.size()), entry.dtype, entry.shape, entry.bytes()});
  }
  std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.name < b.name; });
  const auto step = header.metadata.find("step");
  const bool is_checkpoint = step != header.metadata.end() && header.metadata.count("random.seed");
  print_rows(
      is_checkpoint ? "checkpoint of sash at step " + sash::excerpt(step->second) : "safetensors",
      rows);
  if (is_checkpoint) print_parts(rows);
  print_metadata(header.metadata);
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

void print_gguf(const std::string& path) {
  const sash::GgufFile file(path);
  std::vector<Row> rows;
  for (const sash::GgufFile::Entry& entry : file.entries()) {
    rows.push_back({sash::excerpt(entry.name, entry.name.size()),
                    sash::gguf_format_name(entry.format), entry.shape, entry.bytes});
  }
  std::map<std::string, std::string> metadata;
  for (const auto& [key, value] : file.metadata()) {
    metadata[sash::excerpt(key)] = std::visit(ValueText(), ValueText::base(value));
  }
  print_rows("GGUF", rows);
  print_metadata(metadata);
}

}  // namespace

void print_file(const std::string& path) {
  char magic[4] = {};
  std::ifstream(path, std::ios::binary).read(magic, sizeof magic);
  std::string(magic, sizeof magic) == "GGUF" ? print_gguf(path) : print_safetensors(path);
}
