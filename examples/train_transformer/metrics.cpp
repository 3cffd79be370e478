#include "metrics.h"

#include <filesystem>

#include <sash/core/error.h>
#include <sash/tensor/io/replacement_file.h>
#include <nlohmann/json.hpp>

namespace {

constexpr const char* kOp = "train_transformer";

// The lines of steps up to `first_step`. A last line without a newline is incomplete: dropped.
std::string kept_lines(const std::string& path, int64_t first_step) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw sash::IoError(kOp, "cannot read the metrics in " + path);
  std::string kept, line;
  for (int64_t number = 1; std::getline(file, line) && !file.eof(); ++number) {
    const auto object = nlohmann::json::parse(line, nullptr, false);
    if (!object.is_object() || !object.contains("step") || !object["step"].is_number_integer()) {
      throw sash::FormatError(kOp, "metrics in line " + std::to_string(number) + " of " + path,
                              "something else");
    }
    if (object["step"].get<int64_t>() <= first_step) kept += line + '\n';
  }
  // Refuses a file whose only line has no newline, unless that is an incomplete line of metrics.
  if (kept.empty() && !line.empty() && line.front() != '{') {
    throw sash::FormatError(kOp, "metrics in " + path, "something else");
  }
  return kept;
}

}  // namespace

Metrics::Metrics(const std::string& path, int64_t first_step) {
  if (path.empty()) return;
  if (std::filesystem::is_regular_file(path)) {
    const std::string kept = kept_lines(path, first_step);
    sash::ReplacementFile file(kOp, path);
    file.write(kept.data(), kept.size());
    file.commit();
  }
  file_.open(path, std::ios::app);
  if (!file_) throw sash::IoError(kOp, "cannot write the metrics to " + path);
}

void Metrics::report(const StepReport& step) {
  if (!file_.is_open()) return;
  nlohmann::ordered_json line{{"step", step.step}, {"loss", step.loss}};
  if (step.val_loss) line["val_loss"] = *step.val_loss;
  line["lr"] = step.lr;
  line["grad_norm"] = step.grad_norm;
  line["ms"] = step.ms;
  line["tokens_per_s"] = step.tokens_per_s;
  file_ << line.dump() << '\n' << std::flush;
}
