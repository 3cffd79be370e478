#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "../../core/export.h"

namespace sash::optim {

/// The newest checkpoint that `Trainer` wrote: `path` itself if it is a file; of a folder, the one
/// of the highest step that can be read. Nothing if there is none; `IoError` if the folder cannot
/// be read.
SASH_API std::optional<std::string> newest_checkpoint(const std::string& path);

/// Where a `Trainer` puts its checkpoints: `step-00000500.safetensors` and `best.safetensors` in a
/// folder, or one file if `keep` is 0.
class SASH_API CheckpointFolder {
 public:
  CheckpointFolder(std::string path, int64_t keep) : path_(std::move(path)), keep_(keep) {}

  /// Makes the folder, removes the temporary files of killed writers, and throws `IoError` unless a
  /// file can be created; `ValueError` if a file that is no checkpoint is in the place of one.
  void prepare() const;
  std::string path_of(int64_t step) const;
  std::string best() const;
  /// Removes all but the newest `keep` of the steps up to `step`.
  void remove_old(int64_t step) const;

 private:
  std::string path_;
  int64_t keep_;
};

}  // namespace sash::optim
