#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../../core/backend/device.h"
#include "../../nn/inspect/summary.h"
#include "../../ops/attention/mask/attention_mask.h"
#include "../metrics/metric.h"
#include "../trainer/callback.h"

namespace sash::optim {

struct HtmlReportOptions {
  std::string title = "Training";
  std::optional<Device> device{};  ///< whose name and memory are shown; `default_device()`
};

/// A training as one page of HTML, which opens without a network: loss, validation, learning rate,
/// gradient norm, speed and memory over the steps that it saw, and added sections. A resumed
/// training's page has the steps after the resume, and says so.
///
///     optim::HtmlReport report("run.html");
///     trainer.add(report);  // writes the page at the end of the training
///     trainer.run();
///     report.add_text("Sample", generated);
///     report.add_attention("Layer 0", recorder.weights()[0]);
///     report.write();
class SASH_API HtmlReport : public Callback {
 public:
  using Row = std::vector<std::string>;

  /// `IoError` if the file cannot be written. An old file stays until `write`.
  explicit HtmlReport(std::string path, const HtmlReportOptions& options = {});

  void on_step(const StepReport& report) override;
  void on_warning(const std::string& text) override;
  /// Writes the page.
  void on_end(Trainer& trainer) override;

  // Each of these adds a section below the curves.
  void add_text(const std::string& title, const std::string& text);
  /// `ValueError` if a row has another number of fields than the header.
  void add_table(const std::string& title, const Row& header, const std::vector<Row>& rows);
  /// A model's modules: shapes, parameters, operations, share of scores that masks list.
  void add_summary(const nn::Summary& summary);
  /// A figure of `plot`.
  void add_figure(const std::string& title, const std::string& svg);
  /// One head of a mask; `ValueError` for lengths outside [1, 4096].
  void add_mask(const AttentionMask& mask, int64_t queries, int64_t keys);
  /// The weights [H, S_q, S_k], or the first of a batch [B, H, S_q, S_k], as `AttentionRecorder`
  /// records them: a map for each of the first 16 heads. Only 2 % of the weights are above the
  /// value with the darkest colour. `ShapeError` for other shapes.
  void add_attention(const std::string& title, const Tensor& weights);

  /// How often each class is taken for each other one, as a heat map of the shares of each target
  /// and as numbers. Labels, which stand on its axes too, as for `ConfusionMatrix::to_string`.
  void add_confusion_matrix(const std::string& title, const ConfusionMatrix& matrix,
                            const std::vector<std::string>& labels = {});

  /// Writes the page atomically. `IoError` if it cannot.
  void write() const;

 private:
  /// Values over steps.
  struct Curve {
    std::vector<double> steps{}, values{};
    void add(int64_t step, double value) {
      steps.push_back(static_cast<double>(step));
      values.push_back(value);
    }
  };

  void add_section(const std::string& title, const std::string& body);
  std::string facts() const;
  std::string curves() const;

  std::string path_;
  HtmlReportOptions options_;
  Device device_;
  Curve loss_, lr_, grad_norm_, speed_, memory_, peak_;
  std::map<std::string, Curve> metrics_, validation_;
  std::string sections_, warnings_, ending_, unit_;
  int64_t goal_ = 0;
  double counted_ = 0;           // tokens or samples
  double step_seconds_ = 0;      // without validations and saving
  double start_ = 0, last_ = 0;  // on the clock
};

}  // namespace sash::optim
