#include "file_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "../../core/error.h"

namespace sash {

FileReader::FileReader(std::string_view op, const std::string& path)
    : op_(op), path_(path), descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  struct stat status {};
  if (descriptor_ < 0) fail("open", errno);
  if (::fstat(descriptor_, &status) == 0 && S_ISREG(status.st_mode)) {
    size_ = static_cast<uint64_t>(status.st_size);
    return;
  }
  ::close(descriptor_);
  fail("read", S_ISDIR(status.st_mode) ? EISDIR : EINVAL);
}

FileReader::~FileReader() { ::close(descriptor_); }

void FileReader::read(void* to, uint64_t bytes, uint64_t offset) const {
  char* next = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t got = ::pread(descriptor_, next, bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail("read", errno);
    if (got == 0) throw IoError(op_, "'" + path_ + "' became shorter while it was read");
    next += got;
    offset += static_cast<uint64_t>(got);
    bytes -= static_cast<uint64_t>(got);
  }
}

void FileReader::fail(const char* what, int error) const {
  throw IoError(op_, std::string("cannot ") + what + " '" + path_ +
                         "': " + std::system_category().message(error));
}

}  // namespace sash
