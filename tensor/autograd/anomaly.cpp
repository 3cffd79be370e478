#include "anomaly.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "../../core/call_stack.h"
#include "../tensor_impl.h"

namespace sash {
namespace {

constinit std::atomic<int> users{0};  // guards, and one more while it is set
bool set = false;
std::mutex mutex;      // of what is above and below
std::string infinity;  // the op that made the first

bool any_element(const Tensor& tensor, bool (*is)(double)) {
  if (!tensor.defined() || !is_floating(tensor.dtype())) return false;
  const std::vector<double> elements = tensor.to_vector<double>();
  return std::any_of(elements.begin(), elements.end(), is);
}

bool has_infinity(const Tensor& tensor) {
  return any_element(tensor, [](double x) { return std::isinf(x); });
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
  return any_element(tensor, [](double x) { return std::isnan(x); });
}

namespace detail {

namespace {

// What the thread's next in-place op writes to.
struct Old {
  bool has_nan = false, has_infinity = false;
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

// Whether an input `has` it. `written`: the tensor that an in-place op replaced, or nothing. Inputs
// in its memory have the new elements by now.
bool given(bool (*has)(const Tensor&), Inputs inputs, const Tensor& written) {
  return std::any_of(inputs.begin(), inputs.end(), [&](const TensorRef& input) {
    const Tensor& x = input.get();
    const bool replaced =
        x.defined() && written.defined() && x.impl().storage == written.impl().storage;
    return !replaced && has(x);
  });
}

// `op` made an infinity that nothing gave it.
void note_infinity(const std::string& op) {
  const std::lock_guard lock(mutex);
  if (infinity.empty()) infinity = op;
}

void throw_first_nan(const Node& node) {
  throw AutogradError(node.name(),
                      "made the first NaN, in the forward pass; recorded at" + *node.recorded_at);
}

}  // namespace

void note_recording(Node& node, Inputs inputs, std::span<const Tensor> outputs) {
  node.recorded_at = std::make_unique<std::string>(recording_stack());
  const auto made = [&](bool (*has)(const Tensor&)) {
    return std::any_of(outputs.begin(), outputs.end(), has) && !given(has, inputs, {});
  };
  if (made(has_nan)) throw_first_nan(node);
  if (made(has_infinity)) note_infinity(node.name());
}

void note_old_elements(const Tensor& self) {
  old = {has_nan(self), has_infinity(self), self.impl().base.get()};
}

void note_recording_in_place(Node& node, Inputs inputs, const Tensor& self) {
  node.recorded_at = std::make_unique<std::string>(recording_stack());
  // A base only takes on what its view got.
  const bool taken = old.base == &self.impl();
  const auto made = [&](bool (*has)(const Tensor&), bool had) {
    return has(self) && !had && !taken && !given(has, inputs, self);
  };
  if (made(has_nan, old.has_nan)) throw_first_nan(node);
  if (made(has_infinity, old.has_infinity)) note_infinity(node.name());
}

void check_gradients(const Node& node, std::span<const Tensor> incoming,
                     std::span<const Tensor> gradients) {
  if (std::any_of(incoming.begin(), incoming.end(), has_nan)) return;
  if (std::any_of(gradients.begin(), gradients.end(), has_infinity) &&
      std::none_of(incoming.begin(), incoming.end(), has_infinity)) {
    note_infinity(std::string("gradient of ") + node.name());
  }
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
