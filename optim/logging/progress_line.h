#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "../../core/backend/device.h"
#include "../trainer/callback.h"

namespace sash::optim {

struct ProgressOptions {
  int64_t log_every = 50;          ///< steps between lines where there is no terminal
  std::FILE* out = stdout;         ///< warnings go to stderr
  std::optional<bool> terminal{};  ///< whether `out` is one; by default the system says so
  std::optional<int> columns{};    ///< of the terminal; by default the system says so
  std::optional<Device> device{};  ///< whose memory is shown; `default_device()`
  /// Additions and multiplications of a training step, and the device's peak in a second; with
  /// both, lines show the share.
  double step_flops = 0;
  double peak_flops = 0;
};

/// Shows how a training goes:
///
///     step 1200/2000 [01:42<01:08, 11.8 steps/s]  loss 1.512  val_loss 1.623  lr 3.1e-03
///     |g| 0.42  12.1k tokens/s  38 % of peak  210 MB
///
/// in one line: the time so far, the time left, averages of loss and rates over about ten steps,
/// and the peak of the device's memory. On a terminal the line has a bar, in colour unless NO_COLOR
/// is set, and is rewritten, at most every 0.1 s; figures that do not fit its width are left out.
/// Elsewhere a new line appears every `log_every` steps. Steps with a validation, and the last
/// step, always have a separate line, with all figures; a terminal's width breaks it between
/// figures. If a run ends before its last step, `Trainer::ending` follows.
class SASH_API ProgressLine : public Callback {
 public:
  explicit ProgressLine(const ProgressOptions& options = {});
  /// Ends the line.
  ~ProgressLine() override;
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void on_step(const StepReport& report) override;
  void on_warning(const std::string& text) override;
  void on_end(Trainer& trainer) override;

  /// Ends the line, so that other output can follow.
  void finish();

 private:
  /// An average of the last ten values or so.
  struct Average {
    double sum = 0, weight = 0;
    void add(double value) {
      sum = 0.9 * sum + 0.1 * value;
      weight = 0.9 * weight + 0.1;
    }
    double operator()() const { return sum / weight; }
  };

  struct Part;
  std::vector<Part> parts_of(const StepReport& report) const;
  size_t columns_to_fill() const;

  ProgressOptions options_;
  bool terminal_;
  Device device_;
  bool line_open_ = false;
  Average loss_, seconds_, speed_;
  double start_ = 0, last_ = 0;  // on the clock
};

}  // namespace sash::optim
