#include "anomaly.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <mutex>
#include <string_view>

#include "../../core/call_stack.h"
#include "../tensor_impl.h"

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

namespace {

// What the thread's next in-place op writes to.
struct Old {
  bool has_nan = false;
  const TensorImpl* base = nullptr;
};
constinit thread_local Old old{};

// Without the innermost functions, which record.
std::string recording_stack() {
  constexpr std::string_view kOwn = "\n    sash::detail::";
  std::string text = call_stack();
  while (text.starts_with(kOwn)) text.erase(0, text.find('\n', 1));
  return text;
}

// `written`: the tensor that an in-place op replaced, or nothing. Inputs in its memory have the new
// elements by now.
bool given_nan(Inputs inputs, const Tensor& written) {
  return std::any_of(inputs.begin(), inputs.end(), [&](const TensorRef& input) {
    const Tensor& x = input.get();
    const bool replaced =
        x.defined() && written.defined() && x.impl().storage == written.impl().storage;
    return !replaced && has_nan(x);
  });
}

void throw_first_nan(const Node& node) {
  throw AutogradError(node.name(),
                      "made the first NaN, in the forward pass; recorded at" + *node.recorded_at);
}

}  // namespace

void note_recording(Node& node, Inputs inputs, std::span<const Tensor> outputs) {
  node.recorded_at = std::make_unique<std::string>(recording_stack());
  if (std::any_of(outputs.begin(), outputs.end(), has_nan) && !given_nan(inputs, {})) {
    throw_first_nan(node);
  }
  note_infinity(node.name(), outputs);
}

void note_old_elements(const Tensor& self) { old = {has_nan(self), self.impl().base.get()}; }

void note_recording_in_place(Node& node, Inputs inputs, const Tensor& self) {
  node.recorded_at = std::make_unique<std::string>(recording_stack());
  // A base only takes on what its view got.
  const bool given = old.has_nan || old.base == &self.impl();
  if (has_nan(self) && !given && !given_nan(inputs, self)) throw_first_nan(node);
  note_infinity(node.name(), {&self, 1});
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
