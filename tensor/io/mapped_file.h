#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "../../core/export.h"

namespace sash {

/// A file's bytes as memory, read by the system as they are touched. The file must not be made
/// shorter meanwhile: touching bytes that are gone ends the program (SIGBUS).
class SASH_API MappedFile {
 public:
  /// `IoError` of `op` if the file cannot be opened or mapped, or is no regular file.
  MappedFile(std::string_view op, const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const uint8_t> bytes() const { return {data_, size_}; }

 private:
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace sash
