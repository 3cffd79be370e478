#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "../../core/export.h"

namespace sash {

/// Writes a temporary file beside `path` and renames it to `path` on `commit`, with the old file's
/// permissions. Without a commit it is deleted and `path` keeps the old file. The temporary file is
/// locked (`flock`) until it is renamed; the system frees the lock when the process ends for any
/// reason. If `path` is a symbolic link,
/// its target is replaced; only regular files are accepted. Every failure is an `IoError` of `op`
/// that names `path`.
class SASH_API ReplacementFile {
 public:
  ReplacementFile(std::string_view op, std::string path);
  ~ReplacementFile();
  ReplacementFile(const ReplacementFile&) = delete;
  ReplacementFile& operator=(const ReplacementFile&) = delete;

  void write(const void* from, size_t bytes);
  /// Synchronises the file and renames it.
  void commit();

 private:
  [[noreturn]] void fail(const char* what) const;
  void synchronize_folder() const;

  std::string op_, path_, target_, temporary_;
  int descriptor_ = -1;
  bool committed_ = false;
};

/// Deletes temporary files in a folder that killed writers left, if `is_own` accepts the name of
/// the file that they were to replace. A locked file stays: its writer still runs, in another
/// thread, process, container or host. On a file system without locks, all files stay. Where locks
/// work within one host only (mount options `local_lock` of NFS and `localflock` of Lustre), call
/// it only while no other host writes.
SASH_API void remove_abandoned(const std::string& folder,
                               const std::function<bool(std::string_view name)>& is_own);

}  // namespace sash
