#pragma once

#include <fstream>
#include <string>

#include "console.h"

/// Writes one JSON object per step to a file, one per line. Writes nothing if the path is empty.
class Metrics {
 public:
  /// Opens the file for a run that starts after `first_step` (0 for a new run). An existing file
  /// keeps only its lines up to that step, so that it has each step once. Throws
  /// `sash::FormatError`, and leaves the file as it is, if it holds anything else;
  /// `sash::IoError` if it cannot be written.
  Metrics(const std::string& path, int64_t first_step);

  void report(const StepReport& step);
  /// Whether a line could not be written.
  bool failed() const { return file_.is_open() && !file_; }

 private:
  std::ofstream file_;
};
