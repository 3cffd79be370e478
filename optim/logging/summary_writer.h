#pragma once

#include <cstdint>
#include <cstdio>
#include <limits>
#include <memory>
#include <string>
#include <string_view>

#include "../../core/error.h"
#include "../../tensor/tensor.h"
#include "../trainer/callback.h"

namespace sash::optim {

/// Writes event files that TensorBoard shows (`tensorboard --logdir FOLDER`).
///
///     optim::SummaryWriter writer("runs/window_256");
///     writer.add_scalar("loss/train", loss.item<double>(), step);
///
/// As a callback it adds a training's loss/train, loss/validation, lr, grad_norm, tokens_per_s and
/// other metrics and validations (accuracy/train, accuracy/validation). If a record cannot be
/// written, the callback warns on stderr and writes no further records.
///
/// Each writer makes a new file, `events.out.tfevents.<seconds>.<host>.<process>.<number>`, and
/// appends records to it. TensorBoard joins the files of a folder, so a resumed run continues the
/// same curves. At the first step that a writer gets as a callback, it tells TensorBoard to drop
/// this step and later steps of earlier files (unless this writer has already added such steps), so
/// each step appears once. As a callback it hands each step to the system before the step's
/// checkpoint is written: after a crash, the file has every step that a resumed run does not
/// repeat. Only the last record may be incomplete, and readers skip it.
class SASH_API SummaryWriter : public Callback {
 public:
  /// Makes the folder if there is none. `IoError` if folder or file cannot be made.
  explicit SummaryWriter(const std::string& folder);
  ~SummaryWriter() override;
  SummaryWriter(SummaryWriter&&) noexcept;
  SummaryWriter& operator=(SummaryWriter&&) noexcept;

  // `IoError` if a record cannot be written, from this call or a later one; `ValueError` for a
  // writer that was moved from.
  void add_scalar(std::string_view tag, double value, int64_t step);
  /// A histogram of `values`, a floating tensor on any device, with buckets that grow by 10 %.
  /// `ValueError` if it is empty or an element is not finite.
  void add_histogram(std::string_view tag, const Tensor& values, int64_t step);
  /// `text` is shown as Markdown. `ValueError` if it is not UTF-8.
  void add_text(std::string_view tag, std::string_view text, int64_t step);
  /// Hands all records to the system. The destructor does this too, but cannot report errors.
  void flush();

  void on_step(const StepReport& report) override;
  void on_save(const std::string& path, int64_t step) override;
  void on_end(Trainer& trainer) override;

  const std::string& path() const { return path_; }

 private:
  void add_report(const StepReport& report);
  void begin(int64_t step);
  void check_open() const;
  void write_record(std::string_view event);
  void write_event(int64_t step, uint64_t field, std::string_view message);
  void write_value(std::string value, std::string_view tag, int64_t step);
  [[noreturn]] void fail(const char* what) const;
  void give_up(const IoError& error);

  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
  int64_t last_step_ = std::numeric_limits<int64_t>::min();  // of the values
  bool begun_ = false;
  bool failed_ = false;
};

}  // namespace sash::optim
