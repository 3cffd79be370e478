#include "state_check.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "../../core/error.h"
#include "../../core/quote.h"

namespace sash {
namespace {

void append_list(std::string& text, const char* title, const std::vector<std::string>& items) {
  constexpr size_t kMostItems = 20, kMostBytes = 200;
  if (items.empty()) return;
  text += (text.empty() ? "" : "; ") + std::string(title);
  const size_t shown = std::min(items.size(), kMostItems);
  for (size_t i = 0; i < shown; ++i) text += (i == 0 ? " " : ", ") + excerpt(items[i], kMostBytes);
  if (shown < items.size()) text += " and " + std::to_string(items.size() - shown) + " more";
}

// Why a tensor is not what was expected; empty if it is.
std::string mismatch(const Tensor& tensor, const Shape& shape, bool floating) {
  if (!tensor.defined()) return "undefined";
  if (tensor.shape() != shape) {
    return "expected shape " + to_string(shape) + ", got " + to_string(tensor.shape());
  }
  if (is_floating(tensor.dtype()) == floating) return "";
  return std::string("expected ") + (floating ? "a floating dtype" : "an integer dtype") +
         ", got " + std::string(name(tensor.dtype()));
}

}  // namespace

struct StateCheck::Given {
  struct Entry {
    const Tensor* tensor;
    bool expected = false;
  };
  std::unordered_map<std::string_view, Entry> entries;  // by the keys of the dictionary
};

StateCheck::StateCheck(std::string op, const StateDict& dict)
    : op_(std::move(op)), dict_(dict), given_(std::make_unique<Given>()) {
  for (const auto& [key, tensor] : dict) {
    if (!given_->entries.emplace(key, Given::Entry{&tensor}).second) {
      throw ValueError(op_, "each key once", in_quotes(key) + " twice");
    }
  }
}

StateCheck::~StateCheck() = default;

const Tensor* StateCheck::find(const std::string& key) const {
  const auto found = given_->entries.find(key);
  return found == given_->entries.end() ? nullptr : found->second.tensor;
}

void StateCheck::expect(const std::string& key, const Shape& shape, bool floating) {
  const auto found = given_->entries.find(key);
  if (found == given_->entries.end()) {
    missing_.push_back(key);
    return;
  }
  found->second.expected = true;
  const std::string why = mismatch(*found->second.tensor, shape, floating);
  if (!why.empty()) mismatched_.push_back(key + " (" + why + ")");
}

LoadReport StateCheck::finish(bool strict) {
  LoadReport report{.missing = missing_, .unexpected = {}};
  for (const auto& [key, tensor] : dict_) {
    if (!given_->entries.at(key).expected) report.unexpected.push_back(key);
  }
  std::string complaint;
  if (strict) {
    append_list(complaint, "missing", report.missing);
    append_list(complaint, "unexpected", report.unexpected);
  }
  append_list(complaint, "mismatched", mismatched_);
  if (!report.missing.empty() && given_->entries.contains("model." + report.missing[0])) {
    complaint +=
        "; the tensors are those of a checkpoint, which optim::load_model(path, model) reads";
  }
  if (!complaint.empty()) throw ValueError(op_, complaint);
  return report;
}

}  // namespace sash
