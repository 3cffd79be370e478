#include <algorithm>
#include <array>
#include <ostream>

#include "../../core/readable.h"
#include "summary.h"

namespace sash::nn {
namespace {

constexpr size_t kColumns = 7, kLongest = 44;
using Line = std::array<std::string, kColumns>;

std::string percent(double share) {
  return to_text(100 * share, std::chars_format::fixed, 1) + " %";
}

std::string label(const SummaryRow& row) {
  if (row.name.empty()) return "(model)";
  std::string text(static_cast<size_t>(2 * row.depth), ' ');
  text += row.name.substr(row.name.rfind('.') + 1);
  if (row.calls > 1) text += " x" + std::to_string(row.calls);
  return text;
}

std::string shortened(const std::string& text) {
  return text.size() <= kLongest ? text : text.substr(0, kLongest - 3) + "...";
}

std::string parameters(const SummaryRow& row) {
  if (row.parameters == 0) return "-";
  return grouped(row.parameters) + (row.trainable == 0 ? " frozen" : "");
}

Line line_of(const SummaryRow& row) {
  return {label(row),
          shortened(row.type),
          row.output ? sash::to_string(*row.output) : "-",
          parameters(row),
          row.flops > 0 ? with_prefix(row.flops) : "-",
          row.output_bytes > 0 ? bytes_text(row.output_bytes) : "-",
          row.mask_share ? percent(*row.mask_share) : ""};
}

std::string sums(const Summary& summary) {
  const SummaryRow& model = summary.model();
  std::string text = grouped(model.parameters) + " parameters (" + grouped(model.trainable) +
                     " trained), " + bytes_text(model.parameter_bytes) + "; buffers " +
                     bytes_text(summary.buffer_bytes) + "\n" + with_prefix(model.flops) +
                     " FLOPs forward";
  if (model.mask_share) text += ", attention to " + percent(*model.mask_share) + " of the scores";
  return text + "; " + bytes_text(summary.kept_bytes) + " kept for the backward pass";
}

}  // namespace

std::string to_string(const Summary& summary) {
  std::vector<Line> lines{{"name", "type", "output", "parameters", "FLOPs", "bytes", "mask"}};
  for (const SummaryRow& row : summary.rows) lines.push_back(line_of(row));
  std::array<size_t, kColumns> widths{};
  for (const Line& line : lines) {
    for (size_t i = 0; i < kColumns; ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  std::string text;
  for (const Line& line : lines) {
    std::string row;
    for (size_t i = 0; i < kColumns; ++i) {
      const std::string padding(widths[i] - line[i].size(), ' ');
      const bool is_text = i < 3;
      row += (i == 0 ? "" : "  ") + (is_text ? line[i] + padding : padding + line[i]);
    }
    row.resize(row.find_last_not_of(' ') + 1);
    text += row + "\n";
  }
  return text + sums(summary);
}

std::ostream& operator<<(std::ostream& out, const Summary& summary) {
  return out << to_string(summary);
}

}  // namespace sash::nn
