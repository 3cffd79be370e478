#include "replacement_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <system_error>
#include <utility>

#include "../../core/error.h"

namespace sash {
namespace {

// Resolves a symbolic link, so that the link stays; any other path as it is.
std::string target_of(const std::string& path) {
  char* const resolved = ::realpath(path.c_str(), nullptr);
  if (!resolved) return path;
  std::string target = resolved;
  std::free(resolved);
  return target;
}

}  // namespace

ReplacementFile::ReplacementFile(std::string_view op, std::string path)
    : op_(op), path_(std::move(path)), target_(target_of(path_)) {
  static std::atomic<unsigned> counter{0};
  struct stat old {};
  const bool exists = ::stat(target_.c_str(), &old) == 0;
  if (exists && !S_ISREG(old.st_mode)) {  // a rename would put a file in the place of a device
    throw IoError(op_, "cannot replace '" + path_ + "': it is no regular file");
  }
  temporary_ = target_ + ".tmp." + std::to_string(::getpid()) + "." + std::to_string(counter++);
  descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail("create");
  if (exists) ::fchmod(descriptor_, old.st_mode & 0777);
}

ReplacementFile::~ReplacementFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!committed_) ::unlink(temporary_.c_str());
}

void ReplacementFile::write(const void* from, size_t bytes) {
  const char* next = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t put = ::write(descriptor_, next, bytes);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail("write");
    next += put;
    bytes -= static_cast<size_t>(put);
  }
}

void ReplacementFile::commit() {
  if (::fsync(descriptor_) != 0) fail("synchronise");
  if (::close(std::exchange(descriptor_, -1)) != 0) fail("close");
  if (std::rename(temporary_.c_str(), target_.c_str()) != 0) fail("replace");
  committed_ = true;
  synchronize_folder();
}

void ReplacementFile::fail(const char* what) const {
  const int error = errno;
  throw IoError(op_, std::string("cannot ") + what + " '" + path_ +
                         "': " + std::system_category().message(error));
}

// The new name is on disk only when its folder is; some file systems cannot say, which is fine.
void ReplacementFile::synchronize_folder() const {
  const size_t slash = target_.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : target_.substr(0, slash + 1);
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;
  ::fsync(descriptor);
  ::close(descriptor);
}

}  // namespace sash
