#pragma once

#include <cstdint>
#include <string>

/// Safetensors files, made part by part.
namespace sash::testing {

/// The length in front of a header.
inline std::string prefix(uint64_t length) {
  return std::string(reinterpret_cast<const char*>(&length), sizeof length);
}

/// A file of this header and `data_bytes` bytes of 0.
inline std::string file_of(const std::string& header, size_t data_bytes = 0) {
  return prefix(header.size()) + header + std::string(data_bytes, '\0');
}

/// What a header says of a tensor.
inline std::string entry(const std::string& name, const std::string& dtype,
                         const std::string& shape, const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
         ",\"data_offsets\":" + offsets + "}";
}

}  // namespace sash::testing
