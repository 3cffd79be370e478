#pragma once

#include <fstream>
#include <string>

#include "console.h"

/// One JSON object per line and step in a file; nothing without a path.
class Metrics {
 public:
  /// What a run from `first_step` on is written to. An older file keeps its lines up to that step,
  /// so that every step is there once: none for a new run, all that its checkpoint knows for a
  /// resumed one. `sash::FormatError` for a file that holds something else, which is left as it is;
  /// `sash::IoError` if the file cannot be written.
  Metrics(const std::string& path, int64_t first_step);

  void report(const StepReport& step);
  /// Whether a line could not be written.
  bool failed() const { return file_.is_open() && !file_; }

 private:
  std::ofstream file_;
};
