#include "metrics_log.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string_view>

#include "../../core/error.h"
#include "../../core/quote.h"
#include "../../tensor/io/replacement_file.h"

namespace sash::optim {
namespace {

constexpr const char* kMetricsLog = "MetricsLog";

// Quoted as in RFC 4180.
std::vector<std::string> fields_of(const std::string& line) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    if (quoted && line.compare(i, 2, "\"\"") == 0) {
      fields.back() += line[++i];
    } else if (line[i] == '"') {
      quoted = !quoted;
    } else if (line[i] == ',' && !quoted) {
      fields.emplace_back();
    } else {
      fields.back() += line[i];
    }
  }
  return fields;
}

std::string field_of(const std::string& text) {
  if (text.find_first_of(",\"") == text.npos) return text;
  std::string field = "\"";
  for (const char c : text) field += c == '"' ? "\"\"" : std::string(1, c);
  return field + '"';
}

std::string joined(const std::vector<std::string>& fields) {
  std::string line;
  for (const std::string& field : fields) line += field_of(field) + ',';
  line.back() = '\n';
  return line;
}

/// Steps, and what has no fraction, as integers.
nlohmann::ordered_json number(double value) {
  if (std::abs(value) < 0x1p63 && value == std::floor(value)) return static_cast<int64_t>(value);
  return value;
}

/// The next line that ends, as Windows ends one, too.
bool next_line(std::istream& lines, std::string& line) {
  if (!std::getline(lines, line) || lines.eof()) return false;
  if (line.ends_with('\r')) line.pop_back();
  return true;
}

bool is_regular_file(const std::string& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (status.type() != std::filesystem::file_type::none) return is_regular_file(status);
  throw IoError(kMetricsLog, "cannot read the metrics in " + path + ": " + error.message());
}

}  // namespace

MetricsLog::MetricsLog(std::string path)
    : path_(std::move(path)),
      csv_(path_.ends_with(".csv")),
      file_(std::make_unique<std::ofstream>()) {
  if (is_regular_file(path_)) {
    std::istringstream lines(read());
    int64_t count = 0;
    for (std::string line; next_line(lines, line);) step_of(line, ++count);
  }
  file_->open(path_, std::ios::app);
  if (!*file_) throw IoError(kMetricsLog, "cannot write the metrics to " + path_);
}

MetricsLog::~MetricsLog() = default;

/// The whole file. A last line that was cut short has no newline.
std::string MetricsLog::read() const {
  std::ifstream file(path_, std::ios::binary);
  if (!file) throw IoError(kMetricsLog, "cannot read the metrics in " + path_);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  const char* start = csv_ ? "step" : "{";
  if (!text.empty() && !text.starts_with(start) && !std::string(start).starts_with(text)) {
    throw FormatError(kMetricsLog, "metrics in line 1 of " + path_, "something else");
  }
  return text;
}

/// The step of a whole line; -1 for the header of CSV.
int64_t MetricsLog::step_of(const std::string& line, int64_t count) const {
  if (csv_ && count == 1 && (line == "step" || line.starts_with("step,"))) return -1;
  const auto object =
      nlohmann::json::parse(csv_ ? line.substr(0, line.find(',')) : line, nullptr, false);
  if (csv_ && count > 1 && object.is_number_integer()) return object.get<int64_t>();
  if (!csv_ && object.is_object() && object.contains("step") &&
      object["step"].is_number_integer()) {
    return object["step"].get<int64_t>();
  }
  throw FormatError(kMetricsLog, "metrics in line " + std::to_string(count) + " of " + path_,
                    "something else");
}

void MetricsLog::begin(int64_t step) {
  begun_ = true;
  if (!is_regular_file(path_)) return;
  const std::string text = read();
  std::istringstream lines(text);
  std::string kept;
  int64_t count = 0;
  for (std::string line; next_line(lines, line);) {
    if (step_of(line, ++count) >= step) continue;
    if (csv_ && count == 1) columns_ = fields_of(line);
    kept += line + '\n';
  }
  if (kept != text) replace(kept);
}

void MetricsLog::replace(const std::string& text) {
  file_->close();
  ReplacementFile file(kMetricsLog, path_);
  file.write(text.data(), text.size());
  file.commit();
  file_->open(path_, std::ios::app);
}

MetricsLog::Figures MetricsLog::figures_of(const StepReport& report) {
  Figures figures{{"step", static_cast<double>(report.step)}, {"loss", report.loss}};
  for (const auto& [name, value] : report.metrics) figures.emplace_back(name, value);
  for (const auto& [name, value] : report.validation) figures.emplace_back("val_" + name, value);
  figures.emplace_back("lr", report.lr);
  figures.emplace_back("grad_norm", report.grad_norm);
  figures.emplace_back("ms", report.seconds * 1000);
  figures.emplace_back(report.unit() + "_per_s", report.per_second());
  return figures;
}

void MetricsLog::check_names(const Figures& figures) const {
  std::set<std::string_view> names;
  for (const auto& [name, value] : figures) {
    if (!names.insert(name).second) {
      throw ValueError(kMetricsLog, "a metric with an unused name", in_quotes(name));
    }
    if (csv_ && name.find_first_of("\r\n") != name.npos) {
      throw ValueError(kMetricsLog, "a metric whose name is one line", in_quotes(name));
    }
  }
}

/// Whether there are figures without a column, which get one.
bool MetricsLog::add_columns(const Figures& figures) {
  const size_t before = columns_.size();
  for (const auto& [name, value] : figures) {
    if (std::find(columns_.begin(), columns_.end(), name) == columns_.end()) {
      columns_.push_back(name);
    }
  }
  return columns_.size() > before;
}

std::string MetricsLog::row_of(const Figures& figures) const {
  std::vector<std::string> row;
  for (const std::string& column : columns_) {
    const auto found = std::find_if(figures.begin(), figures.end(),
                                    [&](const auto& figure) { return figure.first == column; });
    const bool known = found != figures.end() && std::isfinite(found->second);
    row.push_back(known ? number(found->second).dump() : "");
  }
  return joined(row);
}

void MetricsLog::on_step(const StepReport& report) {
  const Figures figures = figures_of(report);
  check_names(figures);
  try {
    if (!begun_) begin(report.step);
    if (csv_ && add_columns(figures)) {
      // A new header; rows above end early, which readers take for empty fields.
      const bool regular = is_regular_file(path_);
      const std::string text = regular ? read() : "";
      const size_t first = text.find('\n');
      const std::string header = joined(columns_);
      if (regular) {
        replace(header + (first == text.npos ? "" : text.substr(first + 1)));
      } else {
        *file_ << header;
      }
    }
    if (csv_) {
      *file_ << row_of(figures) << std::flush;
    } else {
      nlohmann::ordered_json line;
      for (const auto& [name, value] : figures) line[name] = number(value);
      constexpr auto replaced = nlohmann::ordered_json::error_handler_t::replace;
      *file_ << line.dump(-1, ' ', false, replaced) + '\n' << std::flush;
    }
  } catch (const IoError&) {
    file_->setstate(std::ios::failbit);
  }
  if (*file_ || failed_) return;
  failed_ = true;
  std::fprintf(stderr, "warning: cannot write the metrics to %s\n", path_.c_str());
}

}  // namespace sash::optim
