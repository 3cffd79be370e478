#include <string>
#include <unordered_map>

#include "../core/error.h"
#include "../tensor/grad_mode.h"
#include "module.h"

namespace sash::nn {
namespace {

void append_list(std::string& text, const char* title, const std::vector<std::string>& items) {
  if (items.empty()) return;
  text += (text.empty() ? "" : "; ") + std::string(title);
  for (size_t i = 0; i < items.size(); ++i) text += (i == 0 ? " " : ", ") + items[i];
}

// Why `from` cannot be copied into `into`; empty if it can.
std::string mismatch(const Tensor& into, const Tensor& from) {
  if (!from.defined()) return "an undefined tensor";
  if (from.shape() != into.shape()) {
    return "expected shape " + to_string(into.shape()) + ", got " + to_string(from.shape());
  }
  if (is_floating(from.dtype()) != is_floating(into.dtype())) {
    return "expected " + std::string(name(into.dtype())) + ", got " +
           std::string(name(from.dtype()));
  }
  return "";
}

std::unordered_map<std::string_view, const Tensor*> indexed(const std::string& op,
                                                            const StateDict& dict) {
  std::unordered_map<std::string_view, const Tensor*> index;
  for (const auto& [key, tensor] : dict) {
    if (!index.emplace(key, &tensor).second) {
      throw ValueError(op, "each key once", "'" + key + "' twice");
    }
  }
  return index;
}

}  // namespace

LoadReport Module::check_state_dict(const StateDict& dict, bool strict) const {
  const std::string op = type_name() + ".load_state_dict";
  auto given = indexed(op, dict);
  LoadReport report;
  std::vector<std::string> mismatches;
  for (const auto& [key, tensor] : state_dict()) {
    const auto entry = given.find(key);
    if (entry == given.end()) {
      report.missing.push_back(key);
      continue;
    }
    if (std::string why = mismatch(tensor, *entry->second); !why.empty()) {
      mismatches.push_back(key + " (" + why + ")");
    }
    given.erase(entry);
  }
  for (const auto& [key, tensor] : dict) {
    if (given.count(key)) report.unexpected.push_back(key);
  }
  std::string complaint;
  if (strict) {
    append_list(complaint, "missing", report.missing);
    append_list(complaint, "unexpected", report.unexpected);
  }
  append_list(complaint, "mismatched", mismatches);
  if (!complaint.empty()) throw ValueError(op, complaint);
  return report;
}

LoadReport Module::load_state_dict(const StateDict& dict, bool strict) {
  LoadReport report = check_state_dict(dict, strict);
  const NoGradGuard no_grad;
  const auto given = indexed(type_name() + ".load_state_dict", dict);
  for (auto& [key, tensor] : state_dict()) {
    if (const auto entry = given.find(key); entry != given.end()) tensor.copy_(*entry->second);
  }
  return report;
}

}  // namespace sash::nn
