#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <utility>
#include <vector>

#include "../../core/ref.h"
#include "../trainer/callback.h"

namespace sash::optim {

/// Appends the figures of each step to a file, as a line of JSON:
///
///     {"step":500,"loss":1.51,"val_loss":1.62,"lr":0.004,"grad_norm":0.4,"ms":85,"tokens_per_s":12047}
///
/// or, if its name ends in ".csv", as a row below a header. Metrics have their names, figures of a
/// validation "val_" before the name. NaN and infinity are null in JSON and empty in CSV.
///
/// The first written step removes the file's lines of this and later steps, and an incomplete last
/// line: a resumed run continues after its checkpoint, and has each step once. A full disk does not
/// end a training: it is a warning on stderr, and `failed()` is true.
class SASH_API MetricsLog : public Callback {
 public:
  /// Opens the file, which stays unchanged until the first step. `FormatError` if it has anything
  /// other than metrics, `IoError` if it cannot be read or written.
  explicit MetricsLog(std::string path);
  ~MetricsLog() override;
  MetricsLog(const MetricsLog&) = delete;
  MetricsLog& operator=(const MetricsLog&) = delete;

  /// `ValueError` for a metric with the name of another figure, or in CSV one of several lines.
  void on_step(const StepReport& report) override;
  /// Whether a line could not be written.
  bool failed() const { return failed_; }

 private:
  using Figures = std::vector<std::pair<std::string, double>>;

  static Figures figures_of(const StepReport& report);
  std::string read() const;
  void begin(int64_t step);
  void replace(const std::string& text);
  void check_names(const Figures& figures) const;
  bool add_columns(const Figures& figures);
  std::string row_of(const Figures& figures) const;
  int64_t step_of(const std::string& line, int64_t number) const;

  std::string path_;
  bool csv_;
  std::vector<std::string> columns_;  // of CSV
  Owned<std::ofstream> file_;
  bool begun_ = false;
  bool failed_ = false;
};

}  // namespace sash::optim
