#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "../../core/export.h"

namespace sash {

/// Reads a regular file at any place. Several threads may read at once. A file that is made shorter
/// meanwhile is an `IoError`, and does not end the program as mapped memory does (`MappedFile`).
class SASH_API FileReader {
 public:
  /// `IoError` of `op` if the file cannot be opened, or is no regular file.
  FileReader(std::string_view op, const std::string& path);
  ~FileReader();
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;

  const std::string& path() const { return path_; }
  /// Bytes of the file when it was opened.
  uint64_t size() const { return size_; }
  /// Bytes [offset, offset + bytes). `IoError` of `op` if the file has fewer.
  void read(void* to, uint64_t bytes, uint64_t offset) const;

  int descriptor() const { return descriptor_; }
  /// Throws the `IoError` "cannot <what> '<path>'", with the system's text for `error`.
  [[noreturn]] void fail(const char* what, int error) const;

 private:
  std::string op_, path_;
  int descriptor_;
  uint64_t size_ = 0;
};

}  // namespace sash
