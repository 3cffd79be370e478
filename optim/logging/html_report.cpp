#include "html_report.h"

#include <algorithm>
#include <cmath>

#include "../../core/backend/backend.h"
#include "../../core/error.h"
#include "../../core/readable.h"
#include "../../ops/elementwise/binary.h"
#include "../../ops/elementwise/unary.h"
#include "../../ops/reduce/reduce.h"
#include "../../tensor/io/replacement_file.h"
#include "../trainer/trainer.h"
#include "clock.h"
#include "mask_svg.h"
#include "plot.h"

namespace sash::optim {
namespace {

constexpr const char* kHtmlReport = "HtmlReport";
constexpr double kMiB = 1024 * 1024;

constexpr const char* kHead = R"(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<style>
body { margin: 24px auto; max-width: 1330px; padding: 0 16px; background: #ffffff; color: #1c1b19;
       font: 15px/1.45 system-ui, sans-serif; }
h1 { font-size: 24px; margin: 0 0 12px; }
h2 { font-size: 18px; margin: 32px 0 10px; padding-top: 14px; border-top: 1px solid #d6d3cc; }
table { border-collapse: collapse; font-size: 13px; }
th, td { padding: 3px 14px 3px 0; text-align: left; border-bottom: 1px solid #e4e2dc;
         vertical-align: top; }
th { font-weight: 600; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
pre { font: 13px/1.4 ui-monospace, monospace; background: #f6f5f2; padding: 12px;
      white-space: pre-wrap; overflow-wrap: anywhere; }
.facts { display: flex; flex-wrap: wrap; gap: 10px 36px; }
.facts div { font-size: 18px; font-weight: 600; }
.facts span { display: block; font-size: 13px; font-weight: 400; color: #4a4741; }
.figures { display: flex; flex-wrap: wrap; gap: 12px; align-items: flex-start; }
.figures > svg { height: auto; max-width: 660px; width: calc(50% - 6px); }
.figures > pre { white-space: pre; overflow-x: auto; max-width: 100%; box-sizing: border-box; }
@media (max-width: 900px) { .figures > svg { width: 100%; } }
.sections { display: grid; gap: 0 24px; grid-template-columns: 100%; }
@media (min-width: 1100px) { .sections { grid-template-columns: 1fr 1fr; } }
section { overflow-x: auto; }
section:has(table), section:has(.figures) { grid-column: 1 / -1; }
</style>
)";

std::string text_of(double value) { return to_text(value, std::chars_format::general, 4); }
std::string whole(double value) { return to_text(value, std::chars_format::fixed, 0); }

std::string duration(double seconds) {
  if (seconds < 60) return to_text(seconds, std::chars_format::fixed, 1) + " s";
  const auto all = static_cast<int64_t>(seconds);
  if (all < 3600) return std::to_string(all / 60) + " min " + std::to_string(all % 60) + " s";
  return std::to_string(all / 3600) + " h " + std::to_string(all / 60 % 60) + " min";
}

/// The values as they are, pale, and their running average.
std::vector<plot::Series> smoothed(const std::string& name, const std::vector<double>& steps,
                                   const std::vector<double>& values) {
  constexpr size_t kFew = 30;
  if (values.size() <= kFew) return {{.name = name, .x = steps, .y = values}};
  plot::Series raw{.x = steps, .y = values, .faint = true};
  plot::Series average{.name = name.empty() ? "averaged" : name + ", averaged", .x = steps};
  const double share = 1 / std::clamp(static_cast<double>(values.size()) / 50, 5.0, 100.0);
  double sum = 0, weight = 0;
  for (const double value : values) {
    if (std::isfinite(value)) {
      sum += share * (value - sum);
      weight += share * (1 - weight);
    }
    average.y.push_back(sum / weight);
  }
  return {raw, average};
}

/// Whether values of all series are positive and several orders of magnitude apart.
bool wants_log(const std::vector<plot::Series>& series) {
  double low = INFINITY, high = 0;
  for (const plot::Series& one : series) {
    for (const double value : one.y) {
      if (!std::isfinite(value)) continue;
      low = std::min(low, value);
      high = std::max(high, value);
    }
  }
  return low > 0 && high > 30 * low;
}

/// Whether a figure was counted: loops of one's own may leave some at 0.
bool is_set(const std::vector<double>& values) {
  return std::any_of(values.begin(), values.end(), [](double value) { return value != 0; });
}

std::string curve(const std::vector<plot::Series>& series, const std::string& title,
                  const std::string& label, const std::string& unit = "") {
  return plot::lines(series, {.title = title,
                              .x = {.label = "step"},
                              .y = {.label = label, .unit = unit, .log = wants_log(series)}});
}

/// A weight that few are above. Those of the first queries, which see few keys, would leave the
/// others pale.
double high_weight(const Tensor& weights) {
  std::vector<double> positive = weights.to_vector<double>();
  std::erase_if(positive, [](double weight) { return !(weight > 0); });
  if (positive.empty()) return 1;
  const auto place = positive.begin() + static_cast<std::ptrdiff_t>(positive.size() * 98 / 100);
  std::nth_element(positive.begin(), place, positive.end());
  return *place;
}

bool is_number(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789.,+-eE kMGT%") == text.npos &&
         text.find_first_of("0123456789") != text.npos;
}

}  // namespace

HtmlReport::HtmlReport(std::string path, const HtmlReportOptions& options)
    : path_(std::move(path)),
      options_(options),
      device_(options.device.value_or(default_device())) {
  ReplacementFile(kHtmlReport, path_);  // throws if it cannot be created
}

void HtmlReport::on_step(const StepReport& report) {
  last_ = clock_seconds();
  if (loss_.steps.empty()) start_ = last_ - report.seconds;
  const int64_t step = report.step;
  goal_ = report.steps;
  unit_ = report.unit();
  counted_ += report.per_second() * report.seconds;
  step_seconds_ += report.seconds;
  loss_.add(step, report.loss);
  lr_.add(step, report.lr);
  grad_norm_.add(step, report.grad_norm);
  if (report.per_second() > 0) speed_.add(step, report.per_second());
  const MemoryStats memory = backend(device_).memory_stats(device_);
  memory_.add(step, static_cast<double>(memory.current) / kMiB);
  peak_.add(step, static_cast<double>(memory.peak) / kMiB);
  for (const auto& [name, value] : report.metrics) metrics_[name].add(step, value);
  for (const auto& [name, value] : report.validation) validation_[name].add(step, value);
}

void HtmlReport::on_warning(const std::string& text) {
  const std::string step = loss_.steps.empty() ? "0" : whole(loss_.steps.back());
  warnings_ += "<li>after step " + step + ": " + plot::escape(text) + "</li>\n";
}

void HtmlReport::on_end(Trainer& trainer) {
  ending_ = trainer.ending();
  write();
}

void HtmlReport::add_section(const std::string& title, const std::string& body) {
  sections_ += "<section>\n<h2>" + plot::escape(title) + "</h2>\n" + body + "</section>\n";
}

void HtmlReport::add_text(const std::string& title, const std::string& text) {
  add_section(title, "<pre>" + plot::escape(text) + "</pre>\n");
}

void HtmlReport::add_table(const std::string& title, const Row& header,
                           const std::vector<Row>& rows) {
  for (const Row& row : rows) {
    if (row.size() != header.size()) {
      throw ValueError(kHtmlReport, "rows of " + std::to_string(header.size()) + " fields",
                       "one of " + std::to_string(row.size()));
    }
  }
  std::string body = "<table>\n<tr>";
  for (const std::string& field : header) body += "<th>" + plot::escape(field) + "</th>";
  for (const Row& row : rows) {
    body += "</tr>\n<tr>";
    for (const std::string& field : row) {
      body += std::string(is_number(field) ? "<td class=\"number\">" : "<td>") +
              plot::escape(field) + "</td>";
    }
  }
  add_section(title, body + "</tr>\n</table>\n");
}

void HtmlReport::add_summary(const nn::Summary& summary) {
  std::vector<Row> rows;
  for (const nn::SummaryRow& row : summary.rows) {
    rows.push_back({row.name.empty() ? "(model)" : row.name, row.type,
                    row.output ? to_string(*row.output) : "", std::to_string(row.parameters),
                    row.flops > 0 ? text_of(row.flops / 1e6) : "",
                    row.mask_share ? whole(100 * *row.mask_share) + " %" : ""});
  }
  add_table("Model",
            {"module", "type", "output", "parameters", "MFLOP, forward", "scores computed"}, rows);
}

void HtmlReport::add_figure(const std::string& title, const std::string& svg) {
  add_section(title, svg);
}

void HtmlReport::add_mask(const AttentionMask& mask, int64_t queries, int64_t keys) {
  add_section("Mask", mask_svg(mask, queries, keys));
}

void HtmlReport::add_attention(const std::string& title, const Tensor& weights) {
  constexpr int64_t kMostHeads = 16;
  const Shape& shape = weights.shape();
  if ((shape.rank() != 3 && shape.rank() != 4) || weights.numel() == 0) {
    throw ShapeError(kHtmlReport, "weights [H, S_q, S_k] or [B, H, S_q, S_k], not empty",
                     to_string(shape));
  }
  const Tensor heads = shape.rank() == 4 ? weights.detach().select(0, 0) : weights.detach();
  const int64_t count = std::min(heads.size(0), kMostHeads);
  const double high = high_weight(heads);
  std::string body = "<div class=\"figures\">\n";
  for (int64_t head = 0; head < count; ++head) {
    body += plot::heat_map(heads.select(0, head), {.title = "head " + std::to_string(head),
                                                   .x = {.label = "key"},
                                                   .y = {.label = "query"},
                                                   .value = "weight",
                                                   .low = 0,
                                                   .high = high,
                                                   .size = 200});
  }
  const bool more = count < heads.size(0);
  add_section(more ? title + ": " + std::to_string(count) + " of " + std::to_string(heads.size(0)) +
                         " heads"
                   : title,
              body + "</div>\n");
}

void HtmlReport::add_confusion_matrix(const std::string& title, const ConfusionMatrix& matrix,
                                      const std::vector<std::string>& labels) {
  const std::string numbers = matrix.to_string(labels);
  const Tensor counts = matrix.matrix().to(DType::float64);
  const Tensor shares = counts / clamp(counts.sum({1}, true), 1);
  const std::string figure =
      plot::heat_map(shares, {.title = title,
                              .x = {.label = "predicted", .names = labels},
                              .y = {.label = "target", .names = labels},
                              .value = "share of the target",
                              .low = 0,
                              .high = 1,
                              .size = std::clamp<int64_t>(18 * matrix.classes(), 320, 640)});
  add_section(title, "<div class=\"figures\">\n" + figure + "<pre>" + plot::escape(numbers) +
                         "</pre>\n</div>\n");
}

/// The figures of the whole run.
std::string HtmlReport::facts() const {
  std::string body;
  const auto add = [&body](const std::string& name, const std::string& value) {
    body += "<div><span>" + plot::escape(name) + "</span>" + plot::escape(value) + "</div>\n";
  };
  if (!loss_.steps.empty()) {
    const std::string last = whole(loss_.steps.back()) + " of " + std::to_string(goal_);
    const bool resumed = loss_.steps.front() > 1;
    add(resumed ? "steps, after a resume" : "steps",
        resumed ? whole(loss_.steps.front()) + " to " + last : last);
    add("loss, averaged", text_of(smoothed("", loss_.steps, loss_.values).back().y.back()));
    const auto found = validation_.find("loss");
    if (found != validation_.end()) {
      const std::vector<double>& values = found->second.values;
      const auto best = std::min_element(values.begin(), values.end());
      const auto index = static_cast<size_t>(best - values.begin());
      add("best validation loss", text_of(*best) + " at step " + whole(found->second.steps[index]));
    }
    const double seconds = last_ - start_;
    add("time", duration(seconds));
    if (step_seconds_ > 0 && counted_ > 0) {
      const double speed = counted_ / step_seconds_;
      add(unit_ + " per s", speed < 1e4 ? text_of(speed) : text_of(speed / 1000) + "k");
    }
  }
  if (!ending_.empty()) add("end", ending_);
  const auto peak = static_cast<double>(backend(device_).memory_stats(device_).peak);
  add("most memory in use", whole(peak / kMiB) + " MiB");
  add("device", to_string(device_) + ", " + backend(device_).description(device_));
  return "<div class=\"facts\">\n" + body + "</div>\n";
}

std::string HtmlReport::curves() const {
  if (loss_.steps.empty()) return "";
  std::string body;
  const auto add = [&](const std::string& name, std::vector<plot::Series> series) {
    const auto found = validation_.find(name);
    if (found != validation_.end()) {
      const Curve& values = found->second;
      series.push_back({.name = "validation", .x = values.steps, .y = values.values});
    }
    body += curve(series, name, name);
  };
  add("loss", smoothed("training", loss_.steps, loss_.values));
  for (const auto& [name, values] : metrics_) {
    add(name, smoothed("training", values.steps, values.values));
  }
  for (const auto& [name, values] : validation_) {
    if (name != "loss" && !metrics_.contains(name)) add(name, {});
  }
  if (is_set(lr_.values)) {
    body += plot::lines({{.x = lr_.steps, .y = lr_.values}},
                        {.title = "learning rate", .x = {.label = "step"}, .y = {.label = "rate"}});
  }
  if (is_set(grad_norm_.values)) {
    body += curve(smoothed("", grad_norm_.steps, grad_norm_.values), "gradient norm", "norm");
  }
  if (is_set(speed_.values)) {
    body += curve(smoothed("", speed_.steps, speed_.values), "speed", unit_, "1/s");
  }
  if (is_set(peak_.values)) {
    body += curve({{.name = "after a step", .x = memory_.steps, .y = memory_.values},
                   {.name = "most so far", .x = peak_.steps, .y = peak_.values}},
                  "memory in use", "memory", "MiB");
  }
  return "<h2>Curves</h2>\n<div class=\"figures\">\n" + body + "</div>\n";
}

void HtmlReport::write() const {
  const std::string title = plot::escape(options_.title);
  std::string page = std::string(kHead) + "<title>" + title + "</title>\n</head>\n<body>\n<h1>" +
                     title + "</h1>\n" + facts() + curves() + "<div class=\"sections\">\n" +
                     sections_ + "</div>\n";
  if (!warnings_.empty()) page += "<h2>Warnings</h2>\n<ul>\n" + warnings_ + "</ul>\n";
  page += "</body>\n</html>\n";
  ReplacementFile file(kHtmlReport, path_);
  file.write(page.data(), page.size());
  file.commit();
}

}  // namespace sash::optim
