#include "mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "../../core/error.h"

namespace sash {

MappedFile::MappedFile(std::string_view op, const std::string& path) {
  const auto fail = [&](const char* what, int error) {
    throw IoError(op, std::string("cannot ") + what + " '" + path +
                          "': " + std::system_category().message(error));
  };
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) fail("open", errno);
  struct stat status {};
  int error = ::fstat(descriptor, &status) < 0 ? errno : 0;
  if (error == 0 && !S_ISREG(status.st_mode)) error = S_ISDIR(status.st_mode) ? EISDIR : EINVAL;
  if (error == 0 && status.st_size > 0) {  // nothing maps no bytes
    size_ = static_cast<size_t>(status.st_size);
    void* const memory = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (memory == MAP_FAILED) {
      error = errno;
    } else {
      data_ = static_cast<const uint8_t*>(memory);
    }
  }
  ::close(descriptor);
  if (error != 0) fail("read", error);
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<uint8_t*>(data_), size_);
}

}  // namespace sash
