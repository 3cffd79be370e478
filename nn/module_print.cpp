#include <algorithm>
#include <ostream>
#include <string>
#include <vector>

#include "../core/readable.h"
#include "module.h"

namespace sash::nn {
namespace {

struct Line {
  std::string text;
  int64_t parameters = -1;  // none to print
};

void add_lines(std::vector<Line>& lines, const std::string& label, const Module& module,
               size_t depth) {
  const std::string indent(2 * depth, ' ');
  const auto children = module.children();
  const std::string open = children.empty() ? "" : " {";
  lines.push_back({indent + label + module.describe() + open, module.num_parameters()});
  for (const auto& [name, child] : children) {
    add_lines(lines, "(" + name + "): ", *child, depth + 1);
  }
  if (!children.empty()) lines.push_back({indent + "}"});
}

}  // namespace

std::string to_string(const Module& module) {
  std::vector<Line> lines;
  add_lines(lines, "", module, 0);
  size_t width = 0;
  for (const Line& line : lines) {
    if (line.parameters >= 0) width = std::max(width, line.text.size());
  }
  const size_t digits = grouped(module.num_parameters()).size();
  std::string text;
  for (const Line& line : lines) {
    text += line.text;
    if (line.parameters > 0) {
      const std::string count = grouped(line.parameters);
      text.append(width - line.text.size() + 2 + digits - count.size(), ' ').append(count);
    }
    text += '\n';
  }
  return text + grouped(module.num_parameters()) + " parameters";
}

std::ostream& operator<<(std::ostream& out, const Module& module) {
  return out << to_string(module);
}

}  // namespace sash::nn
