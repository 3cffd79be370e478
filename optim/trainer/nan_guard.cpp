#include "nan_guard.h"

#include "../../core/error.h"
#include "../../ops/elementwise/binary.h"
#include "../../ops/elementwise/unary.h"
#include "../../ops/reduce/reduce.h"
#include "../../tensor/autograd/anomaly.h"
#include "../../tensor/autograd/grad_mode.h"

namespace sash::optim {
namespace {

bool is_finite(const Tensor& x) {
  if (!is_floating(x.dtype()) || x.numel() == 0) return true;
  const NoGradGuard no_grad;
  return abs(x - x).sum().item<double>() == 0;  // x - x is 0 or NaN
}

}  // namespace

std::string first_nonfinite(const StateDict& tensors) {
  for (const auto& [name, x] : tensors) {
    if (x.defined() && !is_finite(x)) return name;
  }
  return "";
}

std::string explain_nonfinite(std::span<const Tensor> batch, const StateDict& parameters,
                              const std::function<void()>& rerun) {
  for (size_t i = 0; i < batch.size(); ++i) {
    if (!is_finite(batch[i])) return "tensor " + std::to_string(i) + " of the batch is not finite";
  }
  if (const std::string name = first_nonfinite(parameters); !name.empty()) {
    return "parameter " + name + " is not finite";
  }
  std::string found;
  const AnomalyGuard guard;
  try {
    rerun();
  } catch (const Error& error) {
    found = error.what();
  }
  const std::string infinity = first_infinity();
  if (!infinity.empty()) {
    const std::string text = "the first infinity is a result of " + infinity;
    found = found.empty() ? text : text + "; " + found;
  }
  return found.empty() ? "no op made one when the step was repeated" : found;
}

}  // namespace sash::optim
