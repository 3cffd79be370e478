#include "replacement_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "../../core/error.h"

namespace sash {
namespace {

constexpr const char* kTemporary = ".tmp.";

// Resolves a symbolic link, so that the link stays; any other path as it is.
std::string target_of(std::string path) {
  namespace fs = std::filesystem;
  char* const resolved = ::realpath(path.c_str(), nullptr);
  if (!resolved) {
    // Perhaps links to what is not there yet.
    struct stat found {};
    std::error_code error;
    while (::stat(path.c_str(), &found) != 0 && errno == ENOENT) {
      const fs::path next = fs::read_symlink(path, error);
      if (error) break;
      path = (fs::path(path).parent_path() / next).string();
    }
    return path;
  }
  std::string target = resolved;
  std::free(resolved);
  return target;
}

// Whether the file that is open still has this name.
bool is_named(int descriptor, const char* path) {
  struct stat open {
  }, named{};
  return ::fstat(descriptor, &open) == 0 && ::lstat(path, &named) == 0 &&
         open.st_dev == named.st_dev && open.st_ino == named.st_ino;
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
  // A killed process of the same number may have left a file: containers give numbers again.
  for (int tries = 0; tries < 100; ++tries) {
    temporary_ =
        target_ + kTemporary + std::to_string(::getpid()) + "." + std::to_string(counter++);
    descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor_ < 0 && errno == EEXIST) continue;
    if (descriptor_ < 0) break;
    while (::flock(descriptor_, LOCK_EX) != 0 && errno == EINTR) continue;
    if (is_named(descriptor_, temporary_.c_str())) break;
    ::close(std::exchange(descriptor_, -1));  // `remove_abandoned` was here before the lock
  }
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
  if (std::rename(temporary_.c_str(), target_.c_str()) != 0) fail("replace");
  committed_ = true;
  ::close(std::exchange(descriptor_, -1));  // after the name is gone, since this ends the lock
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

void remove_abandoned(const std::string& folder,
                      const std::function<bool(std::string_view name)>& is_own) {
  namespace fs = std::filesystem;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    const size_t at = name.rfind(kTemporary);
    int process = 0, number = 0, read = 0;
    if (at == std::string::npos || !is_own(std::string_view(name).substr(0, at))) continue;
    std::sscanf(name.c_str() + at, ".tmp.%d.%d%n", &process, &number, &read);
    if (static_cast<size_t>(read) != name.size() - at || process <= 0) continue;
    const char* const path = entry.path().c_str();
    constexpr int kFlags = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
    int descriptor = ::open(path, O_WRONLY | kFlags);  // NFS locks nothing that is only read
    if (descriptor < 0) descriptor = ::open(path, O_RDONLY | kFlags);
    if (descriptor < 0) continue;
    const bool free = ::flock(descriptor, LOCK_EX | LOCK_NB) == 0;
    if (free && is_named(descriptor, path)) ::unlink(path);
    ::close(descriptor);
  }
}

}  // namespace sash
