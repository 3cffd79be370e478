#include "anomaly.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <mutex>
#include <string_view>

#include "../../core/call_stack.h"

namespace sash {
namespace {

constinit std::atomic<int> users{0};  // guards, and one more while it is set
bool set = false;
std::mutex mutex;      // of what is above and below
std::string infinity;  // the op that made the first

bool has_infinity(const Tensor& tensor) {
  if (!tensor.defined() || !is_floating(tensor.dtype())) return false;
  for (const double value : tensor.to_vector<double>()) {
    if (std::isinf(value)) return true;
  }
  return false;
}

void note_infinity(const std::string& op, std::span<const Tensor> results) {
  const std::lock_guard lock(mutex);
  if (infinity.empty() && std::any_of(results.begin(), results.end(), has_infinity)) infinity = op;
}

// Without the innermost functions, which record.
std::string recording_stack() {
  constexpr std::string_view kOwn = "\n    sash::detail::";
  std::string text = call_stack();
  while (text.starts_with(kOwn)) text.erase(0, text.find('\n', 1));
  return text;
}

}  // namespace

bool anomaly_mode() { return users.load(std::memory_order_relaxed) > 0; }

void set_anomaly_mode(bool enabled) {
  const std::lock_guard lock(mutex);
  if (enabled) infinity.clear();
  if (enabled != set) users += enabled ? 1 : -1;
  set = enabled;
}

AnomalyGuard::AnomalyGuard() {
  const std::lock_guard lock(mutex);
  if (users++ == 0) infinity.clear();
}

AnomalyGuard::~AnomalyGuard() { --users; }

std::string first_infinity() {
  const std::lock_guard lock(mutex);
  return infinity;
}

bool has_nan(const Tensor& tensor) {
  if (!tensor.defined() || !is_floating(tensor.dtype())) return false;
  for (const double value : tensor.to_vector<double>()) {
    if (std::isnan(value)) return true;
  }
  return false;
}

namespace detail {

void note_recording(Node& node, std::span<const Tensor> outputs) {
  node.recorded_at = std::make_unique<std::string>(recording_stack());
  for (const Tensor& output : outputs) {
    if (has_nan(output)) {
      throw AutogradError(
          node.name(), "made the first NaN, in the forward pass; recorded at" + *node.recorded_at);
    }
  }
  note_infinity(node.name(), outputs);
}

void check_gradients(const Node& node, std::span<const Tensor> incoming,
                     std::span<const Tensor> gradients) {
  for (const Tensor& g : incoming) {
    if (has_nan(g)) return;
  }
  note_infinity(std::string("gradient of ") + node.name(), gradients);
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (!has_nan(gradients[i])) continue;
    const std::string where =
        node.recorded_at ? *node.recorded_at : " an unknown place (anomaly mode was off then)";
    throw AutogradError(node.name(), "made the first NaN, in the gradient of input " +
                                         std::to_string(i) + "; recorded at" + where);
  }
}

}  // namespace detail
}  // namespace sash
