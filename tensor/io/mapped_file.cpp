#include "mapped_file.h"

#include <sys/mman.h>

#include <cerrno>

#include "file_reader.h"

namespace sash {

MappedFile::MappedFile(std::string_view op, const std::string& path) {
  const FileReader file(op, path);
  size_ = file.size();
  if (size_ == 0) return;  // nothing maps no bytes
  void* const memory = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.descriptor(), 0);
  if (memory == MAP_FAILED) file.fail("read", errno);
  data_ = static_cast<const uint8_t*>(memory);
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<uint8_t*>(data_), size_);
}

}  // namespace sash
