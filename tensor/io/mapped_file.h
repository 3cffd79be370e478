#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "../../core/export.h"

namespace sash {

/// A file's bytes as memory. The system reads them when they are touched, and may drop and read
/// them again: a file that others write changes here, too. The file must not be made shorter
/// meanwhile, and its disk or server must stay there: touching bytes that are gone ends the program
/// (SIGBUS). Replacing the file by a rename is safe. `FileReader` throws instead.
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
