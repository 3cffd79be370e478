#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include <sash/tensor/io/gguf.h>

#include "expect_error.h"
#include "temporary_folder.h"

namespace sash::testing {

/// A GGUF file built field by field.
struct GgufBytes {
  std::string text;

  template <class T>
  GgufBytes& add(T value) {
    text.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  GgufBytes& name(const std::string& value) {
    add(uint64_t{value.size()});
    text += value;
    return *this;
  }
  GgufBytes& start(uint64_t tensors, uint64_t keys, uint32_t version = 3) {
    text += "GGUF";
    return add(version).add(tensors).add(keys);
  }
  GgufBytes& entry(const std::string& key, const std::vector<uint64_t>& extents, uint32_t format,
                   uint64_t offset) {
    name(key).add(static_cast<uint32_t>(extents.size()));
    for (const uint64_t extent : extents) add(extent);
    return add(format).add(offset);
  }
  GgufBytes& pad(size_t bytes = 0) {
    text.resize((text.size() + 31) / 32 * 32 + bytes);
    return *this;
  }
};

/// What reading all of such a file throws, without its path.
inline std::string gguf_error(const std::string& bytes) {
  static const TemporaryFolder folder;
  const std::string path = folder.file("x.gguf");
  std::filesystem::remove(path);
  std::ofstream(path, std::ios::binary) << bytes;
  const std::string error = thrown_by([&] { GgufFile(path).tensors({.device = kCPU}); });
  const std::string place = "; in '" + path + "'";
  const size_t at = error.find(place);
  return at == std::string::npos ? error : error.substr(0, at);
}

}  // namespace sash::testing
